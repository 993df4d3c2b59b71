"""How `dtj` runs a program of the trainer: its errors, its signals, and the store that it reaches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dtj.api.errors import DtjError, NotFound, Unreachable, Unusable
from dtj.cli.trainer_programs import ERRORS, run
from dtj_trainer.data.errors import DataError
from dtj_trainer.serving.errors import ServingError
from dtj_trainer.serving.serve import Misconfigured

STORE = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "key"}


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_each_error_of_a_program_is_an_error_of_dtj() -> None:
    known = {each.__name__ for base in (DataError, ServingError) for each in base.__subclasses__()}
    assert Misconfigured.__name__ in known
    assert known == ERRORS.keys()


@pytest.mark.parametrize(
    ("raised", "error", "code"),
    [
        ("serving.errors import ModelMissing", NotFound, 3),
        ("serving.errors import ModelDamaged", Unusable, 2),
        ("serving.errors import NotExportable", Unusable, 2),
        ("serving.errors import StoreUnavailable", Unreachable, 4),
        ("data.errors import DataNotFound", NotFound, 3),
        ("data.errors import DataCorrupt", DtjError, 1),
        ("data.errors import DataUnavailable", Unreachable, 4),
    ],
)
def test_the_error_of_a_program_has_the_codes_of_the_documentation(
    raised: str, error: type[DtjError], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    package = raised.partition(".")[0]
    ends = {"serving": "exit_on_error", "data": "exit_on_data_error"}[package]
    program = f"from dtj_trainer.{raised} as Raised, {ends}\nwith {ends}():\n    raise Raised('a: ü\\nb')"
    with pytest.raises(error) as caught:
        run(python(program))
    assert type(caught.value) is error
    assert (caught.value.message, caught.value.exit_code) == ("a: ü\nb", code)
    assert capfd.readouterr().err == "", "`dtj` prints the error, and the program does not"


def test_a_program_that_printed_faults_is_no_error() -> None:
    assert run(python("")) == 0
    assert run(python("exit(65)")) == 65


def test_other_ends_of_a_program_are_told() -> None:
    with pytest.raises(RuntimeError, match="ended with exit code 7"):
        run(python("exit(7)"))
    with pytest.raises(DtjError, match="was ended by SIGKILL") as killed:
        run(python("import os; os.kill(os.getpid(), 9)"))
    assert killed.value.remedy == "the kernel sends SIGKILL if memory runs out"


def test_the_program_reaches_its_store_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SECRET_ACCESS_KEY", "DTJ_S3_SSE", "OTHER"):
        monkeypatch.setenv(name, "mine")
    shown = tmp_path / "shown"
    write = f"import os; open({str(shown)!r}, 'w').write(repr(dict(os.environ)))"

    def seen(*stores: dict[str, str]) -> dict[str, str]:
        run(python(write), stores)
        environment = eval(shown.read_text())
        return {
            key: environment[key] for key in environment if key in ("DTJ_S3_SSE", "OTHER") or "AWS" in key
        }

    assert seen(STORE, dict(STORE)) == {**STORE, "OTHER": "mine"}
    own = seen()
    assert {own["AWS_PROFILE"], own["AWS_SECRET_ACCESS_KEY"], own["DTJ_S3_SSE"]} == {"mine"}
    shown.unlink()
    with pytest.raises(Unusable, match="a command uses one store"):
        run(python(write), [STORE, {**STORE, "AWS_ACCESS_KEY_ID": "other"}])
    assert not shown.exists()


RUNS = """
import sys
from dtj.api.errors import DtjError
from dtj.cli.trainer_programs import run
try:
    run([sys.executable, "-c", sys.argv[1]])
except KeyboardInterrupt:
    sys.exit(130)
"""
WAITS = "import signal, sys, time\n{}\nprint('waits', flush=True)\ntime.sleep(600)"
COUNTS = "signal.signal({}, lambda *_: (print('got it', flush=True), time.sleep(0.5), sys.exit({})))"


@pytest.mark.parametrize(
    ("sent", "handling", "code"),
    [
        (signal.SIGTERM, COUNTS.format("signal.SIGTERM", 0), 0),
        (signal.SIGINT, COUNTS.format("signal.SIGINT", 0), 0),
        (signal.SIGTERM, "", 128 + signal.SIGTERM),
        (signal.SIGINT, "", 130),
    ],
    ids=["SIGTERM, handled", "SIGINT, handled", "SIGTERM", "SIGINT"],
)
def test_a_program_gets_each_signal_once_and_ends_first(
    sent: signal.Signals, handling: str, code: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RUNS, WAITS.format(handling)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "waits\n"
    os.killpg(process.pid, sent)  # As a terminal does: to all processes of the group.
    assert process.stdout.read() == ("got it\n" if handling else "")
    assert process.wait(60) == code


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the kernel of Linux")
def test_a_program_ends_with_the_command() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RUNS, WAITS.format("")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "waits\n"
    process.kill()
    assert process.stdout.read() == "", "the pipe has no other writer left"
    process.wait()
