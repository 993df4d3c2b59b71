"""The rows of the check in their order, and the loop over them."""

from __future__ import annotations

import os
import platform
import re
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from tests.gpu import faults, sheet, speed, trainings, use
from tests.gpu.kit import REPOSITORY
from tests.gpu.place import Place, nvidia_smi, place
from tests.gpu.sheet import Sheet

ROWS: dict[str, Callable[[Place], Iterator[Sheet]]] = {
    "ddp": trainings.ddp,
    "own_script": trainings.own_script,
    "rates": speed.rates,
    "resume": trainings.resume,
    "two_ranks": faults.two_ranks,
    "saves": speed.saves,
    "fsdp": trainings.fsdp,
    "no_gpu": faults.no_gpu,
    "fewer_gpus": faults.fewer_gpus,
    "broken": faults.broken,
    "filled": faults.filled,
    "waiting": use.waiting,
    "utilisation": use.utilisation,
}
LEAST_SECONDS = 10.0
"""A row with less time does not begin."""


def check(
    kit: Path | None, folder: Path, out: Path, python: str, *, names: Sequence[str] | None, deadline: float
) -> int:
    """Run rows, and write all results to a folder after each row.

    Return 1 if a row fails or has no time left, else 0.

    names: those of ROWS to run, or None for all. deadline: by the monotonic clock.
    """
    gpu = torch.cuda.is_available()
    sheets: list[Sheet] = []
    machine = _machine(gpu)
    print(sheet.markdown(machine, []).split("\n\n")[0], flush=True)
    with place(kit, folder, python, gpu=gpu) as at:
        at.deadline = deadline
        for name in names or ROWS:
            for row in _rows(name, at):
                sheets.append(row)
                sheet.write(out, machine, sheets)
                print(sheet.markdown({}, [row]).splitlines()[-1], flush=True)
    sheet.write(out, machine, sheets)
    bad = [row.name for row in sheets if not sheet.good(row)]
    print(
        f"{out / 'gpu.md'}: {len(sheets) - len(bad)} of {len(sheets)} rows"
        + f"; not {', '.join(bad)}" * bool(bad)
    )
    return int(bool(bad))


def _rows(name: str, at: Place) -> Iterator[Sheet]:
    """Yield the sheets of a function of ROWS; an error is a failed one."""
    if at.left < LEAST_SECONDS:
        yield Sheet(name, instead=sheet.NO_TIME)
        return
    began = time.monotonic()
    try:
        for row in ROWS[name](at):
            row.seconds = time.monotonic() - began
            yield row
            began = time.monotonic()
    except Exception as error:  # noqa: BLE001 - a row that breaks is a result, and the others go on
        where = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        yield Sheet(name, faults=[why], seconds=time.monotonic() - began)


def _machine(gpu: bool) -> dict[str, str]:
    """Return what the results depend on."""
    pinned = re.search(r'"torch==(.*?)"', (REPOSITORY / "pyproject.toml").read_text())
    assert pinned is not None
    card = "none"
    if gpu:
        driver = nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
        card = f"{torch.cuda.get_device_name()}, driver {driver[0] if driver else 'unknown'}"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "card": card,
        "PyTorch": f"{torch.__version__}, and dtj pins {pinned[1]}",
        "Python": platform.python_version(),
        "processors": str(len(os.sched_getaffinity(0))),
    }
