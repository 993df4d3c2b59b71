"""The user's program: its output goes to a log and to stdout, and its last lines are remembered."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from dtj_trainer.launch.output import LastLines, LogFile, writer_to
from dtj_trainer.launch.program import Program, ProgramEnd
from dtj_trainer.launch.settings import Settings

REMEMBERED_LINES = 200
"""Enough for the exceptions of a pod's ranks with their C++ frames, and torchrun's table after them."""


class LoggedProgram(Program):
    """One run of the user's command, with the environment of the settings. `prefix` precedes each line on stdout.

    `log`: the name of the log. `variables`: added to the environment.
    """

    def __init__(
        self,
        settings: Settings,
        command: Sequence[str],
        log: str,
        *,
        prefix: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        log_file = LogFile(settings.logs / log, kept=settings.rotated_logs)
        pass_on = writer_to(sys.stdout.fileno(), prefix.encode())
        self.last_lines = LastLines(REMEMBERED_LINES)
        self._killing: list[threading.Timer] = []

        def on_lines(lines: bytes) -> None:
            log_file.write(lines)
            pass_on(lines)
            self.last_lines.add(lines)

        environment = {**settings.environment, **(variables or {})}
        super().__init__(
            command, environment, on_lines, kept=settings.kept_whole, folder=settings.code_folder
        )

    def stop_soon(self, number: int, kill_after: float | None = None) -> None:
        """Ask the program by a signal to stop; kill it after `kill_after` seconds."""
        self.stop(number)
        if kill_after is not None:
            self._killing.append(timer := threading.Timer(kill_after, self.kill))
            timer.daemon = True
            timer.start()

    def wait(self, on_killed: Callable[[int], None] = lambda _: None) -> ProgramEnd:
        """See `Program.wait`. Nothing of the program is left to kill afterwards."""
        end = super().wait(on_killed)
        for timer in self._killing:
            timer.cancel()
        return end

    def stop_by_signals(self, kill_after: float | None = None) -> None:
        """Forward SIGTERM and SIGINT to the program; kill it `kill_after` seconds later."""

        def stop(number: int, _: object) -> None:
            self.stop_soon(number, kill_after)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
