"""Warm interpreters: a program runs as in a new interpreter, and ends with its client."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import warm

SHOWS = """
import os, sys
print(sys.argv[1:], os.getcwd(), os.environ["COLOUR"], __name__, "kopf" in sys.modules, sys.stdin.read())
print("an error", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def python() -> str:
    """Any framework does: what differs is what is imported."""
    return warm.python("operator")


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["text", "file", "module"])
def test_a_program_has_the_arguments_files_folder_and_environment_of_its_client(
    python: str, tmp_path: Path, how: str
) -> None:
    (tmp_path / "shows.py").write_text(SHOWS)
    words = {"text": ["-c", SHOWS], "file": [str(tmp_path / "shows.py")], "module": ["-m", "shows"]}[how]
    done = subprocess.run(
        [python, *words, "--a", "b c"],
        cwd=tmp_path,
        env={**os.environ, "COLOUR": "blue"},
        input="given",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7, "an error\n")
    assert done.stdout == f"['--a', 'b c'] {tmp_path} blue __main__ True given\n"


def test_a_program_with_other_settings_of_its_imports_starts_cold(python: str) -> None:
    def has_kopf(**environment: str) -> str:
        program = "import sys; print('kopf' in sys.modules)"
        return subprocess.check_output([python, "-c", program], env={**os.environ, **environment}, text=True)

    assert has_kopf() == "True\n"
    assert has_kopf(TF_USE_LEGACY_KERAS="1") == "True\n", "a setting of another framework"
    assert has_kopf(LD_BIND_NOW="1") == "False\n"
    assert warm.cold_starts()["LD_BIND_NOW=1"] >= 1


def test_an_exception_ends_a_program_as_in_python(python: str) -> None:
    done = subprocess.run([python, "-c", "1 / 0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 5),
        (signal.SIGINT, -signal.SIGINT),
        (signal.SIGUSR1, -signal.SIGUSR1),
        (warm.KILL, -signal.SIGKILL),
    ],
)
def test_a_signal_to_the_client_reaches_the_program_which_has_ended_when_the_client_has(
    python: str, number: signal.Signals, code: int
) -> None:
    with subprocess.Popen([python, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
        assert client.stdout is not None
        program = int(client.stdout.readline())
        client.send_signal(number)
        assert client.wait(120) == code
        assert not Path(f"/proc/{program}").exists()


def test_a_program_whose_client_is_killed_is_killed(python: str) -> None:
    with subprocess.Popen([python, "-c", WAITS], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        program = int(client.stdout.readline())
        client.kill()
    until(lambda: not Path(f"/proc/{program}").exists())


def test_the_processor_seconds_of_programs_are_those_of_the_test(python: str) -> None:
    before = warm.used()
    subprocess.run([python, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert warm.used() - before >= 0.25


def test_programs_see_different_orders_of_sets_by_rank(python: str) -> None:
    orders = {
        subprocess.check_output([python, "-c", "print(hash('a'))"], env={**os.environ, "RANK": rank})
        for rank in ("0", "1", "2")
    }
    assert len(orders) == 2


def test_the_servers_end_with_pytest(tmp_path: Path) -> None:
    program = (
        "from tests import warm; import os; warm.make_folder(); warm.python('operator'); "
        "print(os.environ[warm.ENV_FOLDER], flush=True); os.kill(os.getpid(), 9)"
    )
    root = Path(__file__).parents[3]
    killed = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )
    folder = Path(killed.stdout.strip())
    servers = [int(file.read_text()) for file in folder.glob("*/*.pid")]
    shutil.rmtree(folder)
    assert len(servers) == len(warm.HASH_SEEDS), killed.stderr
    until(lambda: not any(Path(f"/proc/{server}").exists() for server in servers))
