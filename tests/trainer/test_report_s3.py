"""`dtj report` of the artifacts of jobs in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.support.training_runs import content, line

from dtj.api.errors import NotFound, Unreachable
from dtj.cli.places import PlaceOptions
from dtj.cli.report_sources import read_runs
from dtj.report.run import Run
from dtj.report.summary import summarise
from dtj_trainer.artifacts.store import Store

ROWS = content([line("train", 0, 1, updates="Asynchronous"), line("end", 9, 2, updates="Asynchronous", ps=1)])


def read(*names: str) -> list[Run]:
    return read_runs(names, PlaceOptions())


def test_jobs_and_folders_of_jobs_are_read(job_store: Store) -> None:
    job = b"kind: DistributedTrainingJob\nspec: {strategy: ParameterServer, args: [--model=cnn]}\n"
    for name in ("one-1", "two-2"):
        # The first chief was killed while it wrote a line.
        job_store.put_bytes(f"ml/{name}/metrics.jsonl", b'{"kind": "tra\n\xff\n3\n' + ROWS)
        job_store.put_bytes(f"ml/{name}/job.yaml", job)
        job_store.put_bytes(f"ml/{name}/checkpoints/1/manifest.json", b"{}")
    tests = content([line("test", 5, 1, accuracy=0.5), line("test", 8, 2, accuracy=0.75)])
    job_store.put_bytes("ml/two-2/metrics-evaluator.jsonl", tests)
    folder = job_store.below("ml").location.uri

    for uris in ([folder], [f"{folder}/"], [f"{folder}/one-1", f"{folder}/two-2/"]):
        runs = read(*uris)
        assert [run.name for run in runs] == ["one-1", "two-2"]
        assert [summarise(run).accuracy for run in runs] == [None, 0.75]
        assert [summarise(run).facts["model"] for run in runs] == ["cnn", "cnn"]


def test_segments_are_read_in_a_bucket_and_in_a_folder_copied_from_it(
    job_store: Store, tmp_path: Path
) -> None:
    rows = content([line("train", at, at) for at in range(1, 12)]).splitlines(keepends=True)
    for number, row in enumerate(rows, 1):
        name = "metrics.jsonl" if number == 1 else f"metrics.jsonl.{number:05d}"
        job_store.put_bytes(f"long-1/{name}", row)
        (tmp_path / name).write_bytes(row)
    for where in (f"{job_store.location.uri}/long-1", str(tmp_path)):
        (run,) = read(where)
        assert [row.step for row in run.rows] == list(range(1, 12))


def test_what_the_ranks_used_is_read_from_all_pods_and_segments(job_store: Store) -> None:
    job_store.put_bytes("job-1/metrics.jsonl", ROWS)
    for pod, segments in (("worker-0", ("", ".00002")), ("worker-1", ("",))):
        for number, segment in enumerate(segments, 1):
            used = {"pod": pod, "seconds": number, "programs": {pod[-1]: {"cpuCores": 1.5}}, "gpus": {}}
            job_store.put_bytes(f"job-1/utilisation/attempt-1/{pod}.jsonl{segment}", content([used]))
            job_store.put_bytes(f"silent/utilisation/attempt-1/{pod}.jsonl{segment}", content([used]))
    (silent,) = read(f"{job_store.location.uri}/silent")
    assert (silent.rows, len(silent.utilisation)) == ([], 3), "the program writes no metrics"
    (run,) = read(f"{job_store.location.uri}/job-1")
    assert [(used.pod, used.seconds) for used in run.utilisation] == [
        ("worker-0", 1),
        ("worker-0", 2),
        ("worker-1", 1),
    ]


def test_nothing_there_and_a_bucket_that_is_not_there_are_said(job_store: Store) -> None:
    with pytest.raises(NotFound, match=r"has no metrics\.jsonl, nor has any job below it"):
        read(job_store.location.uri)
    with pytest.raises(Unreachable, match="the bucket nowhere does not exist"):
        read("s3://nowhere/jobs")
