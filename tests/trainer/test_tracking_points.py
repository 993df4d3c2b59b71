"""Lines of metrics.jsonl and of utilisation become points and parameters; files are read on from where they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dtj_trainer.artifacts.store import Store
from dtj_trainer.tracking import lines
from dtj_trainer.tracking.lines import LocalFiles, StoredFiles, next_lines
from dtj_trainer.tracking.points import Point, params_of, points_of
from dtj_trainer.tracking.settings import TrackerSettings, read_tracker_settings
from dtj_trainer.tracking.tracker import Run, document, find_run, options_of, stored_run

TIME, MILLISECONDS = "2026-11-25T10:00:15.250Z", 1795600815250
TRAIN = {
    "kind": "train",
    "time": TIME,
    "attempt": 2,
    "worldSize": 4,
    "step": 30,
    "loss": 0.5,
    "accuracy": None,
    "note": "warm",
    "stepSeconds": {"forward": 0.25, "of loss!": 1},
}
SAMPLE = {
    "time": TIME,
    "pod": "worker-1",
    "attempt": 1,
    "seconds": 15.0,
    "programs": {"2": {"cpuCores": 1.5}, "chief-0": {"rssBytes": 7}},
    "cpuCores": 1.75,
    "gpus": {"0": {"utilisation": 0.93}},
}


def line(values: object) -> bytes:
    return json.dumps(values).encode()


def test_each_number_of_a_line_is_a_point_of_its_own_time_and_step() -> None:
    assert points_of("metrics.jsonl", line(TRAIN)) == [
        Point("train/worldSize", 4.0, MILLISECONDS, 30),
        Point("train/loss", 0.5, MILLISECONDS, 30),
        Point("train/stepSeconds/forward", 0.25, MILLISECONDS, 30),
        Point("train/stepSeconds/of loss_", 1.0, MILLISECONDS, 30),
    ]
    (first, *_) = points_of("metrics-evaluator.jsonl", line(TRAIN))
    assert first.name == "evaluator/train/worldSize"


def test_what_each_rank_uses_is_apart() -> None:
    second = MILLISECONDS // 1000
    name = "utilisation/attempt-1/worker-1.jsonl"
    assert points_of(name, line(SAMPLE)) == [
        Point("system/rank-2/cpuCores", 1.5, MILLISECONDS, second),
        Point("system/chief-0/rssBytes", 7.0, MILLISECONDS, second),
        Point("system/worker-1/pod/seconds", 15.0, MILLISECONDS, second),
        Point("system/worker-1/pod/cpuCores", 1.75, MILLISECONDS, second),
        Point("system/worker-1/gpu-0/utilisation", 0.93, MILLISECONDS, second),
    ]


def test_the_first_line_of_a_training_has_parameters() -> None:
    start = {
        "kind": "start",
        "time": TIME,
        "attempt": 1,
        "step": 0,
        "model": "cnn",
        "batchSize": 64,
        "data": None,
    }

    assert params_of(line(start)) == {"model": "cnn", "batchSize": "64"}
    assert points_of("metrics.jsonl", line(start)) == []
    assert params_of(line(TRAIN)) == {}


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1]", b"7", b"\xff", b'{"step": "x", "loss": true}', b"[" * 5000]
)
def test_other_lines_are_left_out(text: bytes) -> None:
    assert points_of("metrics.jsonl", text) == []
    assert params_of(text) == {}


def test_options_of_a_command() -> None:
    words = ["python", "-m", "train", "--epochs=3", "--lr", "0.1", "--bf16", "--name=", "--", "-x", "1"]

    assert options_of(words) == {"epochs": "3", "lr": "0.1", "bf16": "true", "name": "", "x": "1"}


def test_a_file_is_read_on_by_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 8)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"one\ntwo\na longer line\nhal")
    files = LocalFiles(tmp_path, "worker-0", 1)
    size = files.sizes(utilisation=True)["metrics.jsonl"]

    found, at = [], 0
    while (step := next_lines(files, "metrics.jsonl", at, size))[1] > at:
        read, at = step
        found += read

    assert (found, at) == ([b"one", b"two", b"a longer line"], 22)
    path.write_bytes(path.read_bytes() + b"f\n")
    assert next_lines(files, "metrics.jsonl", at, size + 2) == ([b"half"], 27)


def test_a_line_that_is_too_long_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 8)
    monkeypatch.setattr(lines, "LONGEST_LINE_BYTES", 20)
    (tmp_path / "metrics.jsonl").write_bytes(b"x" * 30 + b"\nend\n")
    files = LocalFiles(tmp_path, "worker-0", 1)

    assert next_lines(files, "metrics.jsonl", 0, 35) == ([], 24)
    assert next_lines(files, "metrics.jsonl", 24, 35)[0][0] == b"x" * 6


def test_segments_in_the_bucket_are_one_file(job_store: Store) -> None:
    for key, content in {"": b"a\nb\n", ".00002": b"c\n", ".00010": b"d\ne"}.items():
        job_store.put_bytes(f"metrics.jsonl{key}", content)
    job_store.put_bytes("utilisation/attempt-1/worker-1.jsonl", b"{}\n")
    files = StoredFiles(job_store)

    assert files.sizes(utilisation=False) == {"metrics.jsonl": 9}
    assert files.sizes(utilisation=True) == {"metrics.jsonl": 9, "utilisation/attempt-1/worker-1.jsonl": 3}
    assert next_lines(files, "metrics.jsonl", 2, 9) == ([b"b"], 4)
    assert next_lines(files, "metrics.jsonl", 4, 9) == ([b"c"], 6)
    assert next_lines(files, "metrics.jsonl", 6, 9) == ([b"d"], 8)
    assert next_lines(files, "metrics.jsonl", 8, 9) == ([], 8)


class Runs:
    """A server in memory, which may take a request of before late."""

    def __init__(self, *known: str, late: str | None = None) -> None:
        self.known, self.late = [*known], late

    def experiment(self, name: str) -> str:
        return f"id of {name}"

    def run_of(self, experiment: str, uid: str) -> str | None:
        return self.known[0] if self.known else None

    def new_run(self, experiment: str, name: str, tags: dict[str, str]) -> str:
        self.known += [self.late, "new"] if self.late else ["new"]
        return "new"

    def remove_run(self, run: str) -> None:
        self.known.remove(run)

    def params_of(self, run: str) -> dict[str, str] | None:
        return {"of": run} if run in self.known else None


def settings(**more: str) -> TrackerSettings:
    pod = {"DTJ_POD": '{"role": "worker", "index": 0}', "DTJ_TRACKING_URI": "http://tracker/", "DTJ_UID": "u"}
    return read_tracker_settings(pod | more)


@pytest.mark.parametrize(
    ("server", "stored", "run", "left"),
    [
        (Runs(), None, "new", ["new"]),
        (Runs("old"), None, "old", ["old"]),
        (Runs("other", "stored"), "stored", "stored", ["other", "stored"]),
        (Runs(), "deleted", "new", ["new"]),
        (Runs(late="late"), None, "late", ["late"]),
    ],
    ids=["none", "by uid", "stored", "deleted", "taken late"],
)
def test_a_job_has_one_run(server: Runs, stored: str | None, run: str, left: list[str]) -> None:
    assert find_run(server, settings(), stored) == Run(run, {"of": run})
    assert server.known == left


def test_a_run_that_the_job_names_is_its_run() -> None:
    assert find_run(Runs("other", "own"), settings(MLFLOW_RUN_ID="own"), None).id == "own"


def test_what_was_sent_counts_for_one_server() -> None:
    stored = document("http://tracker", "r", {"metrics.jsonl": 7})

    assert stored_run(stored, "http://tracker") == ("r", {"metrics.jsonl": 7})
    assert stored_run(stored, "http://other") == (None, {})
    assert stored_run({}, "http://tracker") == (None, {})
    assert stored_run(stored | {"sent": {"metrics.jsonl": -1}}, "http://tracker") == ("r", {})


def test_the_specs_server_and_experiment_come_first() -> None:
    own = {"MLFLOW_TRACKING_URI": "http://own", "MLFLOW_EXPERIMENT_ID": "7", "MLFLOW_EXPERIMENT_NAME": "own"}

    of_spec = settings(DTJ_TRACKING_EXPERIMENT="spec", **own)
    assert (of_spec.uri, of_spec.experiment, of_spec.experiment_id) == ("http://tracker", "spec", "")
    of_env = settings(**own, DTJ_TRACKING_URI="")
    assert (of_env.uri, of_env.experiment, of_env.experiment_id) == ("http://own", "own", "7")
    assert settings().experiment == "Default"
    assert settings(DTJ_CODE_COMMIT="1a", DTJ_CODE_DIGEST="sha256:5").tags == settings().tags | {
        "mlflow.source.git.commit": "1a", "dtj.code": "sha256:5",
    }  # fmt: skip
    with pytest.raises(ValueError, match="must be an http"):
        settings(DTJ_TRACKING_URI="", MLFLOW_TRACKING_URI="databricks")
