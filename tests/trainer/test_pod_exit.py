"""What a pod says of its end after it was told to stop."""

from __future__ import annotations

import signal
from typing import cast

import pytest

from dtj_trainer import contract
from dtj_trainer.launch.program import ProgramEnd
from dtj_trainer.launch.program_group import Ended, Member, pod_exit
from dtj_trainer.launch.settings import Settings, read_settings

POD = contract.PodInfo(role="worker", index=0, slots=1)


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (ProgramEnd(143, signal.SIGTERM), "the program ended when it was told to stop (SIGTERM)"),
        (ProgramEnd(0), "the program ended when it was told to stop (SIGTERM)"),
        (ProgramEnd(137, signal.SIGKILL), "the program did not end after SIGTERM, and was killed"),
    ],
)
def test_a_program_that_ignored_the_signal_is_told_from_one_that_heeded_it(
    end: ProgramEnd, message: str
) -> None:
    settings: Settings = read_settings({contract.ENV_POD: POD.to_json()})
    report = {"class": "Signal", "message": "ended", "exitCode": end.exit_code, "stopped": True}
    ended = Ended(Member("0", settings, cast("object", None)), end, report)  # type: ignore[arg-type]
    found = pod_exit([ended], signal.SIGTERM, alone=True)
    assert (found["message"], found["exitCode"], found["signal"]) == (message, 143, signal.SIGTERM)
