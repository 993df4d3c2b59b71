"""The table of synchronous against asynchronous updates."""

from __future__ import annotations

import json

import pytest

from dtj_trainer.artifacts.store import Store
from dtj_trainer.programs.compare_updates import NOTE, Run, main, read_run, spread, table

END = {
    "kind": "end",
    "updates": "Asynchronous",
    "model": "cnn",
    "batchSize": 64,
    "workers": 2,
    "ps": 1,
    "steps": 1000,
    "seconds": 10.0,
    "globalStepsPerSecond": 100.0,
    "examplesPerSecond": 6400.0,
}


def run(
    updates: str, rate: float, accuracy: float | None = None, model: str = "cnn", batch_size: int = 64
) -> Run:
    return Run(updates, model, batch_size, 2, 1, rate, batch_size * rate, 1000 / rate, accuracy)


def test_mean_and_deviation_of_each_kind() -> None:
    runs = [run("Asynchronous", rate) for rate in (90, 100, 110)] + [run("Synchronous", 40, 0.9)]

    assert table(runs).splitlines() == [
        "| updates | workers | ps | runs | model | batch | global step/s | examples/s | seconds | accuracy |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| Synchronous | 2 | 1 | 1 | cnn | 64 | 40.00 | 2560 | 25.0 | 0.9000 |",
        "| Asynchronous | 2 | 1 | 3 | cnn | 64 | 100.00 ± 10.00 | 6400 ± 640 | 10.1 ± 1.0 | – |",
    ]


def test_other_models_and_batch_sizes_have_rows_of_their_own() -> None:
    runs = [
        run("Asynchronous", 100),
        run("Asynchronous", 50, batch_size=128),
        run("Asynchronous", 10, model="resnet20"),
    ]
    assert [line.split(" | ")[:6] for line in table(runs).splitlines()[2:]] == [
        ["| Asynchronous", "2", "1", "1", "resnet20", "64"],
        ["| Asynchronous", "2", "1", "1", "cnn", "128"],
        ["| Asynchronous", "2", "1", "1", "cnn", "64"],
    ]


@pytest.mark.parametrize(("values", "text"), [([], "–"), ([1.0], "1.00"), ([1.0, 3.0], "2.00 ± 1.41")])
def test_spread(values: list[float], text: str) -> None:
    assert spread(values, 2) == text


def test_a_run_is_read_from_its_last_end_and_its_last_test() -> None:
    lines = [{"kind": "train", "step": 5}, END | {"globalStepsPerSecond": 1.0}, END]
    tests = [{"kind": "test", "accuracy": 0.5}, {"kind": "test", "accuracy": 0.8}]

    assert read_run(lines, tests) == Run("Asynchronous", "cnn", 64, 2, 1, 100.0, 6400.0, 10.0, 0.8)
    assert read_run(lines[:1], tests) is None
    assert read_run([{"kind": "end", "steps": 3}], []) is None, "a run of another strategy"


def test_the_command_reads_jobs_and_folders_of_jobs(
    job_store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one-1", "two-2"):
        # The first chief was killed while it wrote a line.
        job_store.put_bytes(
            f"ml/{name}/metrics.jsonl", b'{"kind": "tra\n\xff\n3\n' + json.dumps(END).encode() + b"\n"
        )
    job_store.put_bytes("ml/broken-3/metrics.jsonl", b'{"kind": "train"}\n')
    folder = job_store.below("ml").location.uri

    main([folder])
    printed = capsys.readouterr()
    assert "| Asynchronous | 2 | 1 | 2 | cnn | 64 | 100.00 ± 0.00 | 6400 ± 0 |" in printed.out
    assert NOTE in printed.out
    assert "broken-3 has no end" in printed.err

    main([f"{folder}/one-1"])
    assert "| Asynchronous | 2 | 1 | 1 | cnn | 64 |" in capsys.readouterr().out


def test_no_run_there_is_said(job_store: Store) -> None:
    with pytest.raises(SystemExit, match="no finished parameter-server run"):
        main([job_store.location.uri])
