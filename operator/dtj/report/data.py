"""A report as plain data, for JSON, YAML and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dtj.report.entries import Entry
from dtj.report.report import Report
from dtj.report.summary import Spread
from dtj.report.utilisation import RankUtilisation

_FORMULA_STARTS = ("=", "+", "-", "@", "\t")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_FIGURES = {
    "globalStepsPerSecond": "steps_per_second",
    "examplesPerSecond": "examples_per_second",
    "bandwidthBytesPerSecond": "bandwidth",
    "trainingSeconds": "training_seconds",
    "totalSeconds": "total_seconds",
    "accuracy": "accuracy",
    "cost": "cost",
}


def as_data(report: Report) -> dict[str, Any]:
    """Return the report as plain data.

    A figure is `{mean, deviation}` or null. Times are in seconds, accuracies from 0 to 1.
    """
    return {
        "runs": [_run(entry) for entry in report.runs],
        "groups": [
            {"group": entry.label, "runs": [run.name for run in entry.runs], **_entry(entry)}
            for entry in report.groups
        ],
        "notes": list(report.notes),
        "utilisation": [_usage(usage) for usage in report.utilisation],
    }


def as_csv(report: Report) -> dict[str, str]:
    """Return the content of `runs.csv`, and of `groups.csv` and `utilisation.csv` if the report has any, by name."""
    data = as_data(report)
    return {f"{name}.csv": _csv(data[name]) for name in ("runs", "groups", "utilisation") if data[name]}


def _run(entry: Entry) -> dict[str, Any]:
    (run,) = entry.runs
    return {
        "run": run.name,
        "started": None if run.started is None else datetime.fromtimestamp(run.started, UTC).isoformat(),
        "arguments": run.arguments,
        "ended": run.ended,
        "steps": run.steps,
        "attempts": run.attempts,
        **_entry(entry),
        "rankSteps": [
            {"rank": each.rank, "steps": each.steps, "seconds": _spread(each.seconds)}
            for each in run.rank_steps
        ],
    }


def _entry(entry: Entry) -> dict[str, Any]:
    comparison = entry.comparison
    return {
        "facts": {name: value for name, value in entry.facts.items() if value is not None},
        **{name: _spread(getattr(entry, field)) for name, field in _FIGURES.items()},
        "estimated": entry.estimated,
        "restarts": entry.restarts,
        "restartsInPlace": entry.in_place,
        "skippedExamples": entry.skipped,
        "comparison": None
        if comparison is None
        else {
            "baseline": comparison.baseline,
            "speedup": comparison.speedup,
            "timeSpeedup": comparison.time_speedup,
            "efficiency": comparison.efficiency,
            "differences": list(comparison.differences),
        },
    }


def _usage(usage: RankUtilisation) -> dict[str, str | float | None]:
    return {
        "run": usage.run,
        "rank": usage.program,
        "pod": usage.pod,
        "seconds": usage.seconds,
        "cpuCores": usage.cores,
        "cpuLimit": usage.cpu_limit,
        "memoryBytes": usage.memory,
        "podMemoryBytes": usage.pod_memory,
        "podMemoryLimitBytes": usage.pod_memory_limit,
        "readBytes": usage.read,
        "writtenBytes": usage.written,
        "gpuUtilisation": usage.gpu,
        "gpuMemoryBytes": usage.gpu_memory,
        "gpuPowerWatts": usage.gpu_watts,
    }


def _spread(value: Spread | None) -> dict[str, float | None] | None:
    return None if value is None else {"mean": value.mean, "deviation": value.deviation}


def _csv(entries: Sequence[Mapping[str, Any]]) -> str:
    flat = [{_escaped(name): _escaped(value) for name, value in _flat(entry).items()} for entry in entries]
    columns = list({name: None for row in flat for name in row})
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _escaped(cell: Any) -> Any:
    """Return a cell that no spreadsheet evaluates: a text that begins like a formula gets a leading apostrophe."""
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\r", " ")  # CSV readers end a row at a carriage return.
    return f"'{text}" if text.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(text) else text


def _flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry as one row, with the deviation of a figure in its own column and lists as text."""
    row: dict[str, Any] = {}
    for name, value in entry.items():
        if name == "rankSteps":  # A run is one row of a CSV file.
            continue
        if name in ("facts", "comparison"):
            row |= _flat(value or {})
        elif isinstance(value, dict):
            row |= {name: value["mean"], f"{name}Deviation": value["deviation"]}
        elif name in _FIGURES:
            row |= {name: value, f"{name}Deviation": None}
        else:
            row[name] = "; ".join(value) if isinstance(value, list) else value
    return row
