"""The end of a program that leaves processes behind."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from signal import SIGTERM

import pytest
from tests.patience import PATIENCE
from tests.trainer.conftest import until

from dtj_trainer.launch.program import Program, ProgramEnd

WAIT = 20 * PATIENCE
IGNORES_SIGTERM = "trap '' TERM; echo ignores; exec sleep 1000"


class Running:
    """A shell script as a program that a thread waits for."""

    def __init__(self, script: str, pool: ThreadPoolExecutor) -> None:
        self.output: list[bytes] = []
        self.program = Program(["sh", "-c", script], {}, self.output.append)
        assert self.program.start() is None
        self.end: Future[ProgramEnd] = pool.submit(self.program.wait)


@pytest.fixture
def run():
    programs: list[Running] = []
    with ThreadPoolExecutor() as pool:

        def start(script: str) -> Running:
            programs.append(Running(script, pool))
            return programs[-1]

        yield start
        for running in programs:
            running.program.kill()


def test_a_background_process_does_not_delay_the_end(run):
    end = run("sleep 1000 & exit 3").end.result(WAIT)

    assert (end.exit_code, end.killed) == (3, False)


def test_a_background_process_that_ignores_sigterm_does_not_outlast_the_kill(run, monkeypatch):
    monkeypatch.setattr("dtj_trainer.contract.STOP_SECONDS", 10 * WAIT)
    shell = run(f"({IGNORES_SIGTERM}) & wait")
    until(lambda: shell.output, "the background process ignores SIGTERM")

    shell.program.stop(SIGTERM)
    until(lambda: shell.program._process.returncode is not None, "the shell has ended")
    assert not shell.end.done()
    shell.program.kill()

    end = shell.end.result(WAIT)
    assert (end.exit_code, end.signal, end.killed, end.rest_ended) == (143, SIGTERM, True, False)


def test_a_background_process_that_ignores_sigterm_is_killed_without_a_timer(run, monkeypatch):
    monkeypatch.setattr("dtj_trainer.contract.STOP_SECONDS", 0.2)
    shell = run(f"({IGNORES_SIGTERM}) & wait")
    until(lambda: shell.output, "the background process ignores SIGTERM")

    shell.program.stop(SIGTERM)

    assert (end := shell.end.result(WAIT)).killed, end
