"""What each rank of a run used: from the lines of its pods to the table and the CSV file."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dtj.cli import main as cli
from dtj.report.data import as_csv, as_data
from dtj.report.report import make_report
from dtj.report.tables import tables_of
from dtj.report.utilisation import MOST_BYTES, files_to_read, read_lines, usage_of
from tests.unit.support.training_runs import content, even_run, line

GB = 10**9


def utilisation(pod: str, programs: dict[str, Any], seconds: float = 15.0, **values: Any) -> dict[str, Any]:
    return {"pod": pod, "attempt": 1, "seconds": seconds, "programs": programs, "gpus": {}} | values


def program(cores: float, **values: Any) -> dict[str, Any]:
    return {"cpuCores": cores, "processes": 1, "rssBytes": 3 * GB} | values


LINES = [
    utilisation("worker-0", {"0": program(1.0, pssBytes=GB, readBytes=GB)}, 5.0, cpuLimit=2.0),
    utilisation(
        "worker-0",
        {"0": program(2.0, pssBytes=2 * GB, readBytes=GB, writtenBytes=GB)},
        memoryBytes=4 * GB,
        memoryLimitBytes=8 * GB,
        gpus={
            "0": {"utilisation": 0.9, "memoryUsedBytes": 40 * GB, "powerWatts": 300},
            "1": {"utilisation": 0.7, "memoryUsedBytes": 50 * GB, "powerWatts": 200},
        },
    ),
    *(utilisation(f"worker-{rank}", {str(rank): program(0.5)}) for rank in (10, 2)),
]


def test_a_table_by_rank_with_means_over_time_and_the_most_memory() -> None:
    run = replace(even_run("a", 10), utilisation=read_lines(content(LINES)))
    report = make_report([run])
    table = tables_of(report)[-1]
    assert table.title == "Utilisation"
    rows = [dict(zip(table.headings, row, strict=True)) for row in table.rows]
    assert rows[0] == {
        "run": "a",
        "rank": "0",
        "pod": "worker-0",
        "time (s)": "20.0",
        "CPUs in use": "1.75",
        "CPU limit": "2.00",
        "memory (GB)": "2.00",
        "pod memory (GB)": "4.00",
        "memory limit (GB)": "8.00",
        "read (GB)": "2.00",
        "written (GB)": "1.00",
        "GPUs in use %": "80.0",
        "GPU memory (GB)": "50.00",
        "GPU power (W)": "250",
    }
    assert [(row["rank"], row["memory (GB)"], row["GPUs in use %"]) for row in rows[1:]] == [
        ("2", "3.00", "–"),
        ("10", "3.00", "–"),
    ]
    assert as_data(report)["utilisation"][0]["gpuUtilisation"] == pytest.approx(0.8)
    assert as_csv(report)["utilisation.csv"].splitlines()[2].startswith("a,2,worker-2,15.0,0.5,")


def test_runs_without_it_have_no_such_table() -> None:
    report = make_report([even_run("a", 10)])
    assert [table.title for table in tables_of(report)] == ["Runs"]
    assert as_data(report)["utilisation"] == []
    assert not [note for note in report.notes if "tilisation" in note]


@pytest.mark.parametrize(
    "text",
    [
        b'{"pod": "worker-0", "seconds": 5, "prog',
        b"[" * 100_000,
        b'{"pod": 7, "seconds": 5}',
        b'{"pod": "worker-0", "seconds": 0, "programs": {"0": {}}}',
        b'{"pod": "worker-0", "seconds": NaN, "programs": {"0": {}}}',
    ],
)
def test_what_is_no_line_is_left_out(text: bytes) -> None:
    assert read_lines(text + b"\n" + content(LINES[:1])) == read_lines(content(LINES[:1]))


def test_values_that_are_no_numbers_are_not_known() -> None:
    bad = utilisation("ps-0", {"ps-0": {"cpuCores": "many", "rssBytes": 1e400}, "1": []}, gpus=[1])
    (found,) = usage_of("a", read_lines(json.dumps(bad).encode()))
    assert (found.program, found.cores, found.memory, found.gpu) == ("ps-0", None, None, None)


@pytest.mark.bound(
    "dtj ui",
    "Who may write to the bucket",
    "Bytes of utilisation that are read",
    "64 MiB, the newest attempts",
)
def test_the_newest_attempts_are_read_up_to_a_limit() -> None:
    sizes = {
        f"utilisation/attempt-{n}/worker-{m}.jsonl": MOST_BYTES // 5 for n in (9, 10) for m in (10, 2, 0)
    }
    assert files_to_read(sizes) == [
        *(f"utilisation/attempt-10/worker-{m}.jsonl" for m in (0, 2, 10)),
        *(f"utilisation/attempt-9/worker-{m}.jsonl" for m in (0, 2)),
    ]


def test_the_command_reads_the_files_of_all_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content([line("start", 0, 0), line("train", 5, 5)]))
    folder = tmp_path / "utilisation/attempt-1"
    folder.mkdir(parents=True)
    for each in LINES[2:]:
        (folder / f"{each['pod']}.jsonl").write_bytes(content([each]))
    monkeypatch.setattr(sys, "argv", ["dtj", "report", str(tmp_path), "-o", "json"])
    with pytest.raises(SystemExit):
        cli.main()
    found = json.loads(capsys.readouterr().out)["utilisation"]
    assert [(each["rank"], each["pod"]) for each in found] == [("2", "worker-2"), ("10", "worker-10")]
