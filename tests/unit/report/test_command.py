"""The command `dtj report`.

* runs of folders and files, and the formats that are written
* jobs of a cluster by name
* wrong arguments
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dtj.api.errors import NotFound
from dtj.cli import main as cli
from dtj.cli import places
from dtj.client import Artifacts, DistributedTrainingJob
from tests.unit.support import past_jobs
from tests.unit.support.training_runs import content, line

REAL = Path(__file__).with_name("runs")
Dtj = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dtj(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dtj:
    """`dtj report`: exit code, standard output and standard error."""

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dtj", "report", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_a_folder_of_runs_is_printed_as_whole_lines(dtj: Dtj) -> None:
    code, out, _ = dtj(REAL)
    assert code == 0
    (heading,) = [each for each in out.splitlines() if each.startswith("run ")]
    assert heading.split("  ")[0] == "run"
    assert "global step/s" in heading
    (killed,) = [each for each in out.splitlines() if each.startswith("horovod-killed")]
    assert killed.split()[-1] == "1", "its restarts"
    (servers,) = [each for each in out.splitlines() if each.startswith("ps-synchronous")]
    assert "84.89" in servers, "as the evaluator measured"


def test_runs_are_named_by_folder_or_file_each_by_a_name_of_its_own(dtj: Dtj) -> None:
    code, out, _ = dtj(REAL / "horovod-1", REAL / "horovod-1/metrics.jsonl", "-o", "json")
    assert code == 0
    assert [run["run"] for run in json.loads(out)["runs"]] == ["horovod-1", "horovod-1 (2)"]


def test_every_form_is_written_into_the_folder(dtj: Dtj, tmp_path: Path) -> None:
    code, out, _ = dtj(REAL, "--out", tmp_path / "made")
    files = {path.name for path in (tmp_path / "made").iterdir()}
    assert code == 0
    pictures = {"time-and-accuracy.png", "over-time.png"}
    assert files == {"report.md", "report.html", "runs.csv", *pictures}
    assert "](over-time.png)" in (tmp_path / "made/report.md").read_text()
    assert all(str(tmp_path / "made" / name) in out for name in files)


def test_without_a_folder_files_go_to_dtj_report(
    dtj: Dtj, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = dtj(REAL, "--format", "markdown", "--format", "csv", "--group-by", "model")
    assert (code, sorted(out.split())) == (
        0,
        ["dtj-report/groups.csv", "dtj-report/report.md", "dtj-report/runs.csv"],
    )
    assert "png" not in (tmp_path / "dtj-report/report.md").read_text()


def test_each_run_is_a_page_to_send(dtj: Dtj, tmp_path: Path) -> None:
    code, out, _ = dtj(REAL / "horovod-1", REAL / "horovod-killed", "--format", "page", "--out", tmp_path)
    assert (code, out.split()) == (
        0,
        [str(tmp_path / f"run-{name}.html") for name in ("horovod-1", "horovod-killed")],
    )
    assert "restarts, at step" in (tmp_path / "run-horovod-killed.html").read_text()


def test_a_folder_of_a_past_job_has_the_recorded_end(dtj: Dtj, tmp_path: Path) -> None:
    ended = past_jobs.end(past_jobs.entry(), "Failed")
    (tmp_path / "metrics.jsonl").write_bytes((REAL / "horovod-1/metrics.jsonl").read_bytes())
    for record, known in ((json.dumps(ended), True), ("no record", False)):
        (tmp_path / "end.json").write_text(record)
        code, out, _ = dtj(tmp_path, "-o", "json")
        total = json.loads(out)["runs"][0]["totalSeconds"]
        assert (code, total is not None) == (0, known)
    (tmp_path / "end.json").write_text(json.dumps(ended))
    dtj(tmp_path, "--format", "page", "--out", tmp_path)
    assert "Failed. The job failed: rank 1" in (tmp_path / f"run-{tmp_path.name}.html").read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["./nowhere"], 3, "nowhere has no metrics.jsonl"),
        (["s3://UPPER/case"], 2, "names no valid bucket"),
        ([REAL, "--baseline", "none"], 3, "no run or group is called none"),
        ([REAL, "--group-by", "colour"], 2, "no run has the field colour"),
        ([REAL, "--price", "much"], 2, "'much' is not a price"),
        ([REAL, "--out", REAL / "horovod-1/metrics.jsonl/x"], 2, "can't be written"),
    ],
)
def test_what_can_not_be_is_said_in_one_line(dtj: Dtj, words: list[Any], code: int, said: str) -> None:
    found, _, err = dtj(*words)
    assert found == code
    assert said in err.splitlines()[0]


class Stored(Artifacts):
    """What a job left, from memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__("s3://bucket/jobs/ml/mnist-1", {})
        self._files = files

    def read(self, key: str, most: int | None = None) -> bytes:
        if key not in self._files:
            raise NotFound(f"{key} does not exist")
        return self._files[key]

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return {key: len(content) for key, content in self._files.items() if key.startswith(f"{prefix}/")}


class Somewhere:
    """A place with one job."""

    def __init__(self, manifest: dict[str, Any], files: dict[str, bytes]) -> None:
        self._manifest, self._files = manifest, files

    def job(self) -> DistributedTrainingJob:
        return DistributedTrainingJob.from_cluster(self._manifest)

    @contextmanager
    def artifacts(self) -> Iterator[Artifacts]:
        yield Stored(self._files)


def test_a_job_by_name_has_its_total_time_its_labels_and_its_restarts(
    dtj: Dtj, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = {
        "metadata": {"name": "mnist", "namespace": "ml", "uid": "1-2", "labels": {"team": "vision"}},
        "spec": {
            "strategy": "Horovod",
            "image": "i",
            "args": ["--model=vgg"],
            "replicaSpecs": {"worker": {"replicas": 2}},
        },
        "status": {
            "phase": "Succeeded",
            "startTime": "2026-11-21T09:59:00Z",
            "completionTime": "2026-11-21T10:04:00Z",
            "attempt": 3,
            "restarts": {"application": 1, "infrastructure": 1},
        },
    }
    rows = [line("train", 0, 1, worldSize=2), line("train", 10, 21, examplesPerSecond=50.0, worldSize=2)]
    asked = []

    def find(name: str, **where: Any) -> Somewhere:
        asked.append((name, where))
        return Somewhere(manifest, {"metrics.jsonl": content(rows)})

    monkeypatch.setattr(places, "find", find)
    code, out, _ = dtj("mnist", "--local", "-n", "ml", "--group-by", "team", "-o", "json")
    assert code == 0
    assert asked == [("mnist", {"local": True, "namespace": "ml", "context": None, "past": None})]
    data = json.loads(out)
    (run,) = data["runs"]
    assert run["facts"] | {"ranks": 0} == {
        "strategy": "Horovod",
        "model": "vgg",
        "workers": 2,
        "ranks": 0,
        "team": "vision",
    }
    assert (run["ended"], run["attempts"], run["restarts"]) == (True, 3, 2)
    assert run["totalSeconds"]["mean"] == 300
    assert run["trainingSeconds"]["mean"] == 10
    assert run["globalStepsPerSecond"]["mean"] == 2
    assert data["groups"][0]["group"] == "vision"


def test_two_runs_of_one_job_differ_by_date_and_arguments(dtj: Dtj, tmp_path: Path) -> None:
    for name, at, args in (("one", 0, "[--lr=0.1, --note, a b]"), ("two", 3600, "[--lr=0.2]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_bytes(content([line("train", at, 1)]))
        (tmp_path / name / "job.yaml").write_text(f"spec: {{args: {args}}}\n")
    code, out, _ = dtj(tmp_path)

    assert code == 0
    (heading, one, two) = out.splitlines()[1:4]
    assert re.split("  +", heading)[:3] == ["run", "started (UTC)", "arguments"]
    assert re.split("  +", one.strip())[:3] == ["one", "2026-11-21 10:00:00", "--lr=0.1 --note 'a b'"]
    assert re.split("  +", two.strip())[:3] == ["two", "2026-11-21 11:00:00", "--lr=0.2"]
    runs = json.loads(dtj(tmp_path, "-o", "json")[1])["runs"]
    assert [(run["started"], run["arguments"]) for run in runs] == [
        ("2026-11-21T10:00:00+00:00", "--lr=0.1 --note 'a b'"),
        ("2026-11-21T11:00:00+00:00", "--lr=0.2"),
    ]


def test_of_a_folder_without_metrics_the_folder_is_named(
    dtj: Dtj, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adir").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    code, _, err = dtj("adir")

    assert code == 3
    assert err.startswith("dtj: the folder adir has no metrics.jsonl, and no job adir was found: ")
