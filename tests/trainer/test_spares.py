"""Warm spares: a program that starts by one behaves as one that `python` starts, or starts as without one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.trainer.conftest import REPOSITORY, until
from tests.trainer.torch_pods import torch_pods

from dtj_trainer import contract
from dtj_trainer.launch import cgroups, spare, spare_program
from dtj_trainer.launch.processes import runs
from dtj_trainer.launch.program import Program, Starter
from dtj_trainer.launch.spare import Spares, python_command

WAIT = 60 * PATIENCE
HOLD = "import time, library, library.later, own; print('holds', flush=True); time.sleep(10000)"
Ended = tuple[str, int]


class Folder:
    """The folder of a program: its script, its own module, and an installed distribution."""

    def __init__(self, path: Path, temporary: str) -> None:
        self.path = path
        self.installed = path / "lib/site-packages"
        self.write("own.py", "LOADED = True")
        self.write("hold.py", HOLD)
        self.write("idle.py", "import time; print('holds', flush=True); time.sleep(10000)")
        self.library("")
        self.write("lib/site-packages/library/later.py", "")
        self.write("lib/site-packages/needed.py", "WHOSE = 'installed'")
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.installed),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": temporary,
        }

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def library(self, text: str) -> None:
        """Install a distribution with this text as its package `library`."""
        self.write("lib/site-packages/library/__init__.py", text)


class Starts:
    """The starts of one program of a pod with spares."""

    def __init__(self, folder: Folder, **more: Any) -> None:
        self.folder = folder
        self.spares = Spares(**more)
        self.saved = True
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, flags: Sequence[str] = (), **variables: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, *flags, *words]
        environment = {**self.folder.environment, **variables}
        self.processes.append(self.spares.start("0", command, environment, self.folder.path))
        return self.processes[-1]

    def hold(self, *words: str, flags: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start a program that imports, and goes on."""
        process = self.start(*(words or ("hold.py",)), flags=flags)
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        return process

    @property
    def spare(self) -> spare._Spare | None:
        return self.spares._seats["0"].spare

    def tend(self) -> spare._Spare | None:
        self.spares.tend(lambda: self.saved)
        return self.spare

    def spare_ready(self, flags: Sequence[str] = (), *words: str) -> spare._Spare:
        held = self.hold(*words, flags=flags)
        until(lambda: (found := self.tend()) and found.ready, "a spare is ready")
        held.kill()
        held.wait()
        assert self.spare is not None
        return self.spare

    def gives_up(self) -> None:
        """Wait until a spare has failed for good."""
        until(lambda: self.tend() is None and self.spares._seats["0"].not_before == float("inf"), "no spare")

    def close(self) -> None:
        self.spares.close()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    # The path of a socket has 108 bytes at most, and multiprocessing's is below TMPDIR.
    with tempfile.TemporaryDirectory(prefix="dtj-") as temporary:
        Path(temporary).chmod(0o777)
        yield Folder(tmp_path, temporary)


@pytest.fixture
def starts(folder: Folder) -> Iterator[Callable[..., Starts]]:
    made: list[Starts] = []

    def make(**more: Any) -> Starts:
        made.append(Starts(folder, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ended(process: subprocess.Popen[bytes]) -> Ended:
    output, _ = process.communicate(timeout=WAIT)
    return output.decode(), process.returncode


def three_ways(starts: Callable[..., Starts], *words: str, flags: Sequence[str] = ()) -> list[Ended]:
    """How a program ends that `python` starts, the first start beside a spare, and a start by a spare."""
    both = starts()
    environment, path = both.folder.environment, both.folder.path
    bare = Starter().start([sys.executable, *flags, *words], environment, path)
    found = [ended(bare), ended(both.start(*words, flags=flags))]
    waiting = both.spare_ready(flags, "idle.py")
    by_spare = both.start(*words, flags=flags)
    assert by_spare.pid == waiting.process.pid
    return [*found, ended(by_spare)]


FACTS = """
'''A program.'''
import os, pickle, sys, multiprocessing

class Kept:
    def __init__(self, value): self.value = value

def double(kept): return Kept(2 * kept.value)

if __name__ == '__main__':
    main = sys.modules['__main__']
    print(sorted(vars(main)), main.__file__ if hasattr(main, '__file__') else None, main.__doc__, main.__package__)
    print(main.__spec__ and main.__spec__.name, type(main.__loader__), main.__builtins__)
    print(sys.argv, sys.orig_argv[1:], sys.path, sys.flags, os.getcwd())
    print(os.getpgid(0) == os.getpid(), sorted(os.environ.items()), os.umask(0o22), os.nice(0))
    print(os.sched_getscheduler(0), open('/proc/self/oom_score_adj').read(), sys.gettrace(), sys.getrecursionlimit())
    print(pickle.loads(pickle.dumps(Kept(1))).value, Kept.__module__, sys.stdin.read() == '')
    for method in ('fork', 'spawn', 'forkserver'):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.map(double, [Kept(2)])[0].value)
"""


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["facts.py", "a", "--b", "c d", ""], []),
        (["./facts.py"], ["-u"]),
        (["below/link.py"], ["-O", "-W", "error", "-Xutf8"]),
        (["-m", "package.facts", "-x"], []),
        (["-m", "package"], ["-s", "-OO"]),
        (["facts.py"], ["-P"]),
        (["-m", "facts"], ["-I"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_program_finds_the_same(folder, starts, words, flags):
    folder.write("facts.py", FACTS)
    folder.write("package/__init__.py", "")
    folder.write("package/facts.py", FACTS)
    # A module of the name __main__ can't be imported again in a new process.
    folder.write("package/__main__.py", FACTS.partition("    for method")[0])
    folder.write("below/x", "")
    (folder.path / "below/link.py").symlink_to(folder.path / "facts.py")

    by_python, first, by_spare = three_ways(starts, *words, flags=flags)

    assert first == by_python
    assert by_spare == by_python
    if "-I" not in flags:
        assert by_python[1] == 0, by_python[0]
    if "package" not in words and "-I" not in flags:
        assert "spawn 4" in by_python[0]


ENDS = {
    "success": "print('done')",
    "exit code": "import sys; sys.exit(3)",
    "exit text": "import sys; sys.exit('a text')",
    "error": "import own\ndef fails():\n    raise ValueError('what')\nfails()",
    "cause": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('that') from e",
    "error without a frame": "raise KeyError('k')",
    "syntax": "x = = 1",
    "tabs": "if True:\n\tx = 1\n        y = 2",
    "coding": "# -*- coding: latin-1 -*-\nprint('\u00e9')",
    "interrupt": "raise KeyboardInterrupt",
    "own hook": "import sys\nsys.excepthook = lambda kind, e, tb: print(kind, e, tb.tb_frame.f_code.co_name)\n1 / 0",
    "at once": "import os; os._exit(4)",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "fault": "import faulthandler, os; os.kill(os.getpid(), 11)",
    "at exit": "import atexit; atexit.register(print, 'bye')\nclass A:\n    def __del__(self): print('del')\na = A()",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.1), print('late'))).start()",
    "group": "raise ExceptionGroup('many', [ValueError(1), TypeError(2)])",
    "no module": "import nothing_of_this_name",
    "shadow": "import json, mmap, threading\nprint(json.OWN, mmap.OWN)",
}


@pytest.mark.parametrize("by", ["script", "module"])
@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_the_same(folder, starts, end, by):
    folder.write("program.py", ENDS[end]).write_bytes(ENDS[end].encode("latin-1"))
    if end == "shadow":
        folder.write("json.py", "OWN = 'own json'")
        folder.write("mmap.py", "OWN = 'own mmap'")
        # The module `multiprocessing` of the standard library would need the real json.

    by_python, first, by_spare = three_ways(
        starts, *(["program.py"] if by == "script" else ["-m", "program"])
    )

    assert first == by_python
    assert by_spare == by_python


@pytest.mark.parametrize("kind", ["missing", "folder", "archive", "compiled"])
def test_what_is_no_source_file_runs_as_by_python(folder, starts, kind):
    program = folder.path / "program"
    if kind == "folder":
        folder.write("program/__main__.py", "import sys; print(sys.argv, sys.path[0], __spec__.name)")
    elif kind == "archive":
        with zipfile.ZipFile(program, "w") as archive:
            archive.writestr("__main__.py", "import sys; print(sys.argv, sys.path[0], __file__); sys.exit(7)")
    elif kind == "compiled":
        import py_compile

        py_compile.compile(str(folder.write("source.py", "print('compiled')")), cfile=str(program))

    by_python, first, by_spare = three_ways(starts, "program", "a")

    assert first == by_python
    assert by_spare == by_python


def test_a_spare_has_the_installed_modules_and_none_of_the_program(folder, starts):
    folder.write(
        "says.py",
        "import sys; print([n in sys.modules for n in ('library', 'library.later', 'own', 'hold')])",
    )
    both = starts()
    assert ended(both.start("says.py"))[0] == "[False, False, False, False]\n"
    both.spare_ready()
    assert ended(both.start("says.py"))[0] == "[True, True, False, False]\n"


def test_what_a_program_only_looks_for_is_not_imported(folder, starts):
    folder.write("lib/site-packages/unwanted.py", "")
    folder.write("hold.py", "import importlib.util as u; u.find_spec('unwanted')\n" + HOLD)
    folder.write("says.py", "import sys; print('unwanted' in sys.modules, 'library' in sys.modules)")
    both = starts()
    both.spare_ready()
    assert ended(both.start("says.py"))[0] == "False True\n"


SETS = """
import os, sys
os.environ['BACKEND'] = 'chosen'
del os.environ['REMOVED']
sys.path.append('/extra')
import library
"""
SAYS = "print(library.SEEN, sorted(os.environ.items()), sys.path)"


def test_imports_see_the_environment_that_the_program_had_made_for_them(folder, starts):
    folder.environment |= {"REMOVED": "x", "BACKEND": "first"}
    folder.library(
        "import os, sys; SEEN = [os.environ.get(n) for n in ('BACKEND', 'REMOVED')], '/extra' in sys.path\n"
        "os.environ['BY_LIBRARY'] = '1'"
    )
    folder.write("hold.py", SETS + "os.environ['BACKEND'] = 'too late'\n" + HOLD)
    folder.write(
        "program.py", "import os, sys\nprint(os.environ['BACKEND'], 'REMOVED' in os.environ)" + SETS + SAYS
    )

    by_python, first, by_spare = three_ways(starts, "program.py")

    assert first == by_python
    assert "'chosen'" in by_python[0]
    # The order of the variables does not matter.
    assert by_spare == by_python


def test_a_round_has_its_own_variables_and_other_variables_start_a_new_process(folder, starts):
    program = "import os; print(os.environ['MASTER_PORT'], os.getenv('OTHER'))"
    folder.write("program.py", program)
    folder.environment["MASTER_PORT"] = "1"
    both = starts()
    waiting = both.spare_ready()
    by_spare = both.start("program.py", MASTER_PORT="2", MLFLOW_RUN_ID="")
    assert by_spare.pid == waiting.process.pid
    assert ended(by_spare) == ("2 None\n", 0)

    waiting = both.spare_ready()
    cold = both.start("program.py", MASTER_PORT="3", OTHER="yes")
    assert ended(cold) == ("3 yes\n", 0)
    assert waiting.process.returncode == -signal.SIGKILL


DEVICE = next(
    (path for path in ("/dev/fuse", "/dev/kmsg", "/dev/net/tun", "/dev/ptmx") if Path(path).exists()), ""
)
STARTS = """
import subprocess
with open('children', 'a') as file: file.write(f"{subprocess.Popen(['sleep', '1000']).pid} ")
"""


@pytest.mark.parametrize(
    ("library", "own", "why"),
    [
        ("import needed", "needed", "the module needed of the program"),
        (f"import os; os.open({DEVICE!r}, os.O_RDONLY)", None, f"opened {DEVICE}"),
        ("import tempfile; tempfile.mkdtemp()", None, "made the folder"),
        (
            "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
            None,
            "a thread",
        ),
        (STARTS, None, "started a process"),
        ("import sys; 'hold' in sys.argv[0] and sys.path.append('/a')", "moves", "change sys.path"),
    ],
    ids=["own module", "device", "folder", "thread", "process", "path"],
)
def test_a_spare_that_differs_from_the_program_is_not_used(folder, starts, caplog, library, own, why):
    folder.library(library)
    if own == "needed":
        folder.write("needed.py", "WHOSE = 'own'")
    if own == "moves":
        folder.write("hold.py", "import sys; sys.path.append('/b')\n" + HOLD)
    both = starts()
    held = both.hold()
    both.gives_up()
    assert why in caplog.text
    assert held.poll() is None
    if library == STARTS:
        of_program, of_spare = map(int, (folder.path / "children").read_text().split())
        assert runs(of_program)
        until(lambda: not runs(of_spare), "what the spare had started has ended")
    os.killpg(held.pid, signal.SIGKILL)
    folder.write("program.py", "print('cold')")
    folder.library("")
    assert ended(both.start("program.py")) == ("cold\n", 0)


@pytest.mark.parametrize("exits", ["import os; os._exit(3)", "import os; os.kill(os.getpid(), 6)"])
def test_a_library_that_ends_the_spare_does_so_once(folder, starts, caplog, exits):
    folder.library(f"import sys\nif 'later' in sys.argv:\n    {exits}")
    both = starts()
    process = both.start("hold.py")
    assert process.stdout.readline() == b"holds\n"
    both.spares._seats["0"].python = python_command([sys.executable, "hold.py", "later"])
    both.gives_up()
    assert "has no warm spare: it has ended" in caplog.text
    for _ in range(3):
        assert both.tend() is None


def test_an_import_that_fails_or_exits_is_left_to_the_program(folder, starts):
    folder.library("import sys\nif sys.argv[0] == 'hold.py' and 'own' not in sys.modules: pass")
    folder.write("lib/site-packages/exits.py", "import sys; sys.exit(9)")
    folder.write("lib/site-packages/fails.py", "raise RuntimeError('here')")
    folder.write(
        "hold.py", "for n in ('exits', 'fails'):\n  try: __import__(n)\n  except BaseException: pass\n" + HOLD
    )
    folder.write("program.py", "import library, exits")
    both = starts()
    both.spare_ready()
    assert ended(both.start("program.py")) == ("", 9)


def kills(spare_: spare._Spare) -> None:
    spare_.process.kill()


def stops(spare_: spare._Spare) -> None:
    spare_.process.send_signal(signal.SIGSTOP)


def says_nonsense(spare_: spare._Spare) -> None:
    spare_.ready = False
    spare_._said = lambda seconds: b"nonsense\n"  # type: ignore[method-assign]


@pytest.mark.parametrize("harm", [kills, stops, says_nonsense])
def test_a_broken_spare_is_killed_before_a_new_process_starts(folder, starts, monkeypatch, harm):
    monkeypatch.setattr(spare, "ANSWER_SECONDS", 0.2)
    folder.write("program.py", "print('ran')")
    both = starts()
    waiting = both.spare_ready()
    harm(waiting)
    process = both.start("program.py")
    assert process.pid != waiting.process.pid
    assert waiting.process.returncode == -signal.SIGKILL
    assert ended(process) == ("ran\n", 0)


def test_a_spare_that_still_imports_is_not_waited_for(folder, starts):
    folder.library("import sys, time\nif sys.argv[0] != 'program.py' and 'own' not in sys.modules: pass")
    folder.write(
        "lib/site-packages/slow.py", "import os, time\nwhile not os.path.exists('go'): time.sleep(.01)"
    )
    folder.write("go", "")
    folder.write("hold.py", "import slow\n" + HOLD)
    folder.write("program.py", "print('ran')")
    both = starts()
    held = both.hold()
    (folder.path / "go").unlink()
    until(both.tend, "a spare imports")
    waiting = both.spare
    held.kill()
    assert ended(both.start("program.py")) == ("ran\n", 0)
    assert waiting.process.returncode == -signal.SIGKILL


def test_a_spare_that_can_not_be_killed_starts_no_second_program(folder, starts, monkeypatch):
    both = starts()
    waiting = both.spare_ready()
    monkeypatch.setattr(spare, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(spare, "END_SECONDS", 0.2)
    waiting.process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(waiting.process, "kill", lambda: None)
    program = Program(
        [sys.executable, "hold.py"],
        folder.environment,
        lambda lines: None,
        folder=folder.path,
        starter=both.spares.starter("0"),
    )
    end = program.start()
    assert end is not None
    assert "its warm spare does not end after SIGKILL" in str(end.missing)
    os.kill(waiting.process.pid, signal.SIGKILL)


class Memory:
    """A container's memory, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def __call__(self) -> cgroups.Usage:
        return cgroups.Usage(memory=self.used, memory_limit=self.limit)


def test_a_spare_needs_twice_its_memory_and_makes_room(folder, starts, monkeypatch, caplog):
    monkeypatch.setattr(spare, "FIRST_BYTES", 100)
    memory = Memory(1000)
    memory.used = 801
    both = starts(usage=memory)
    both.hold()
    assert both.tend() is None
    memory.used = 800
    assert both.tend() is not None
    until(lambda: both.tend().ready, "a spare is ready")
    both.spares._taken = 100
    memory.used = 900
    both.spares.make_room()
    assert both.tend() is not None
    memory.used = 901
    both.spares.make_room()
    assert both.tend() is None
    assert "has no warm spare for now: the memory is needed" in caplog.text
    memory.used = 0
    assert both.tend() is None, "the next one is not due yet"
    monkeypatch.setattr(spare.time, "monotonic", lambda: 1e9)
    assert both.tend() is not None


def test_a_spare_that_the_kernel_killed_is_no_kill_of_the_program(folder, starts, monkeypatch):
    counter = [3]
    monkeypatch.setattr(cgroups, "oom_kills", lambda: counter[0])
    both = starts()
    waiting = both.spare_ready()
    assert both.spares.oom_kills() == 3
    counter[0] = 4
    waiting.process.kill()
    waiting.process.wait()
    assert both.spares.oom_kills() == 3
    both.tend()
    assert both.spares.oom_kills() == 3
    counter[0] = 5
    assert both.spares.oom_kills() == 4


def test_spares_start_after_the_first_checkpoint(folder, starts, monkeypatch):
    both = starts()
    both.saved = False
    both.hold()
    assert both.tend() is None
    both.saved = True
    assert both.tend() is not None
    never_saves = starts()
    never_saves.saved = False
    never_saves.hold()
    assert never_saves.tend() is None
    monkeypatch.setattr(spare, "SETTLED_SECONDS", 0.0)
    assert never_saves.tend() is not None
    assert never_saves.spares._seats["0"].noted > 0


def test_no_spare_is_left(folder, starts):
    both = starts()
    waiting = both.spare_ready()
    both.close()
    assert waiting.process.returncode == -signal.SIGKILL
    assert both.spares._seats["0"].record is None


AS_NOBODY = """
import json, os, sys, time
sys.path[:0] = [{trainer!r}]
from dtj_trainer.launch.spare import Spares
spares = Spares()
environment = dict(os.environ)
os.chdir({folder!r})
held = spares.start('0', [sys.executable, 'hold.py'], environment, None)
held.stdout.readline()
while not (spares.tend(lambda: True) or (seat := spares._seats['0']).spare and seat.spare.ready):
    assert seat.not_before == 0
    time.sleep(0.05)
waiting = seat.spare.process.pid
tasks = {{t: os.sched_getscheduler(int(t)) for t in os.listdir(f'/proc/{{waiting}}/task')}}
score = open(f'/proc/{{waiting}}/oom_score_adj').read().strip()
held.kill()
program = spares.start('0', [sys.executable, 'says.py'], environment, None)
assert program.pid == waiting
print(json.dumps([os.getuid(), list(tasks.values()), score, json.loads(program.communicate()[0])]))
"""
SAYS_PRIORITY = """
import json, os, library
tasks = [int(task) for task in os.listdir('/proc/self/task')]
tasks = [(os.sched_getscheduler(task), os.getpriority(os.PRIO_PROCESS, task)) for task in tasks]
print(json.dumps([tasks, library.POLICY, open('/proc/self/oom_score_adj').read().strip()]))
"""


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="changes the user")
def test_a_rank_without_privileges_has_normal_priority_after_imports_at_idle_priority(folder):
    folder.library("import os; POLICY = os.sched_getscheduler(0)")
    folder.write("says.py", SAYS_PRIORITY)
    for path in (folder.path, *folder.path.parents):
        if path.stat().st_mode & 0o005 != 0o005:
            path.chmod(0o755)
    # The interpreter may lie in a folder of root's. Reading there is no right of a scheduler.
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    words += [
        "--inh-caps=-all,+dac_read_search",
        "--ambient-caps=+dac_read_search",
        "--bounding-set=-all,+dac_read_search",
    ]
    script = AS_NOBODY.format(trainer=str(REPOSITORY / "trainer"), folder=str(folder.path))

    done = subprocess.run(
        [*words, sys.executable, "-c", script], env=folder.environment, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    user, waiting, score, (tasks, imports, restored) = json.loads(done.stdout)
    before = Path("/proc/self/oom_score_adj").read_text().strip()
    assert user == 65534
    assert imports == os.SCHED_IDLE
    assert waiting == [os.SCHED_OTHER]
    assert tasks == [[os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0)]]
    assert (score, restored) == ("1000", before)


AS_ITSELF = '#!/bin/sh\nexec {python} "$@"\n'
AS_CHILD = '#!/bin/sh\n{python} "$@"\nexit $?\n'
WITHOUT_FILES = """#!{python}
import subprocess, sys
sys.exit(subprocess.run([{python!r}, *sys.argv[1:]]).returncode)
"""
"""A program that starts the interpreter as a child, without other files than the first three."""
AGENT = """
import os
from dtj_trainer.launch import main, pod, replica
pod.Pod.saved_since = lambda self, at_ns: os.path.exists(os.environ["SAVED"])
replica.SIGNAL_SECONDS = 0.1
main.main()
"""
"""An agent to whom a file says that a checkpoint was saved."""
PYTHON = "/usr/bin/python3.11"


@pytest.mark.parametrize(
    ("words", "interpreter", "program"),
    [
        ("python train.py --epochs 3", "python", "train.py --epochs 3"),
        (f"{PYTHON} -u -O train.py -m x", f"{PYTHON} -u -O", "train.py -m x"),
        ("python3 -W ignore -Xdev -X utf8 t.py", "python3 -W ignore -Xdev -X utf8", "t.py"),
        ("python -m train -u", "python", "-m train -u"),
        ("python -uOm train", "python -uO", "-m train"),
        ("python -mtrain a", "python", "-m train a"),
        ("python -OW error -u t.py", "python -OW error -u", "t.py"),
    ],
)
def test_these_commands_have_spares(words, interpreter, program):
    assert python_command(words.split()) == (tuple(interpreter.split()), tuple(program.split()))


@pytest.mark.parametrize(
    "words",
    [
        ["sh", "-c", "python train.py"],
        ["torchrun", "train.py"],
        ["python", "-m", "torch.distributed.run", "train.py"],
        ["python", "-m", "accelerate.commands.launch", "train.py"],
        ["python", "/usr/bin/torchrun", "train.py"],
        ["python", "-c", "print(1)"],
        ["python", "-i", "train.py"],
        ["python", "-x", "train.py"],
        ["python", "-"],
        ["python"],
        ["python", "-m"],
        ["python", "-W"],
        ["python", "--version"],
        ["python", ""],
        [],
    ],
)
def test_these_commands_have_none(words):
    assert python_command(words) is None


def test_a_command_without_a_spare_starts_as_it_is(folder, starts):
    both = starts()
    process = both.spares.start("0", ["sh", "-c", "cat /proc/$$/cmdline"], folder.environment, folder.path)
    assert ended(process) == ("sh\0-c\0cat /proc/$$/cmdline\0", 0)
    assert both.tend() is None


def test_without_a_command_the_error_is_that_of_any_start(folder, starts):
    both = starts()
    with pytest.raises(FileNotFoundError):
        both.spares.start("0", ["python9", "x.py"], {"PATH": ""}, folder.path)


def test_noted_imports_end_where_the_file_does():
    whole = b"\x05\0\0\0" + b"\xe9\x01\0\0\0"
    assert list(spare_program._noted(whole + whole[:6])) == [1]
    assert list(spare_program._noted(whole + b"\xff\0\0\0" + b"x")) == [1]
    assert list(spare_program._noted(bytes(16))) == []


TORCH = """
import os, sys
print('torch._dynamo' in sys.modules)
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.tensor([float(index)])

if __name__ == '__main__':
    torch.distributed.init_process_group('gloo')
    torch.manual_seed(1)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    for method in ('fork', 'spawn'):
        for batch in DataLoader(Numbers(), 2, num_workers=1, multiprocessing_context=method):
            net(batch).sum().backward()
        print(method, [parameter.grad.tolist() for parameter in net.parameters()])
    if 'hold' in sys.argv:
        import time
        print('holds', flush=True)
        time.sleep(10000)
    policies = {os.sched_getscheduler(int(task)) for task in os.listdir('/proc/self/task')}
    print(policies, torch.get_num_threads())
    torch.save(net, 'net.pt')
    print(type(torch.load('net.pt', weights_only=False)), torch.load('net.pt', weights_only=False).module.bias)
"""


def hurried(pid: int) -> None:
    """Give the imports of a spare normal priority: at idle priority, importing PyTorch takes minutes beside tests."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))


@pytest.mark.torch
def test_a_bare_torch_script_trains_by_a_spare(folder, starts):
    folder.write("train.py", TORCH)
    folder.environment |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    del folder.environment["PYTHONDONTWRITEBYTECODE"]
    both = starts()
    held = both.start("train.py", "hold")
    while held.stdout.readline() not in (b"holds\n", b""):
        pass
    until(
        lambda: (found := both.tend()) and (hurried(found.process.pid) or found.ready),
        "a spare is ready",
        timeout=80,
    )
    held.kill()
    waiting = both.spare
    by_spare = both.start("train.py")
    assert by_spare.pid == waiting.process.pid
    warm, code = ended(by_spare)
    cold = ended(both.start("train.py"))
    assert code == 0, warm
    assert warm.startswith("True\n"), "the spare has imported what DistributedDataParallel imports"
    assert (warm.replace("True", "False", 1), code) == cold
    assert f"{{{os.SCHED_OTHER}}}" in warm


@pytest.mark.parametrize("wrapper", [AS_ITSELF, AS_CHILD, WITHOUT_FILES])
def test_an_interpreter_may_be_started_by_another_program(folder, starts, wrapper):
    python = folder.write("bin/python", wrapper.format(python=sys.executable))
    python.chmod(0o755)
    folder.write("program.py", "import library, sys; print('ran', sys.argv)")
    both = starts()
    process = both.spares.start("0", [str(python), "program.py", "a"], folder.environment, folder.path)
    assert ended(process) == ("ran ['program.py', 'a']\n", 0)
    held = both.spares.start("0", [str(python), "hold.py"], folder.environment, folder.path)
    both.processes.append(held)
    assert held.stdout.readline() == b"holds\n"
    if wrapper == WITHOUT_FILES:
        both.gives_up()
    else:
        waiting = until(lambda: (found := both.tend()) and found.ready and found, "a spare is ready")
        process = both.spares.start("0", [str(python), "program.py", "a"], folder.environment, folder.path)
        assert (process.pid == waiting.process.pid) == (wrapper == AS_ITSELF)
        assert ended(process) == ("ran ['program.py', 'a']\n", 0)


TRAINS = """
import os, pathlib, sys, time
import library, own
if __name__ == "__main__":
    restart, port = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["MASTER_PORT"]
    assert library.PID == os.getpid()
    print(f"start {restart} is {os.getpid()} of {sys.argv[1]} on {port}", flush=True)
    print("priority", os.sched_getscheduler(0), open("/proc/self/oom_score_adj").read(), library.POLICY, flush=True)
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.02)
"""


@pytest.mark.parametrize("kept", [True, False])
def test_the_ranks_of_a_round_start_by_spares(folder, make_workspace, monkeypatch, kept):
    folder.library("import os; PID, POLICY = os.getpid(), os.sched_getscheduler(0)")
    script = folder.write("train.py", TRAINS)
    (pod,) = torch_pods(
        make_workspace,
        1,
        2,
        rounds=contract.Rounds(0, 6, spare=kept),
        TORCHELASTIC_RESTART_COUNT="0",
        PYTHONPATH=str(folder.installed),
        SAVED=str(folder.path / "saved"),
    )
    command = [sys.executable, "-c", AGENT, "ranks", "--", sys.executable, str(script), "$(MASTER_PORT)"]
    run = pod.run(*command, str(folder.path / "finish"))
    run.says("a failure is followed by a restart in place")

    def pids(start: int) -> list[int]:
        found = re.findall(rf"start {start} is (\d+) of (\d+) on \2\n", run.output)
        return [int(pid) for pid, _ in found] if len(found) == 2 else []

    before = until(lambda: pids(0), "both ranks run", tell=lambda: run.output)
    folder.write("saved", "")
    if kept:
        until(
            lambda: run.output.count(" has a warm spare of ") == 2,
            "both have spares",
            tell=lambda: run.output,
        )
    os.kill(before[1], signal.SIGKILL)
    after = until(lambda: pids(1), "both ranks run again", tell=lambda: run.output)
    (folder.path / "finish").touch()
    assert run.ended() == 0, run.output

    assert not set(before) & set(after)
    assert run.output.count("starts by its warm spare") == (2 if kept else 0)
    score = Path("/proc/self/oom_score_adj").read_text().strip()
    priorities = re.findall(r"priority (\d+) (-?\d+)\n*.* (\d+)", run.output)
    cold = (str(os.SCHED_OTHER), score, str(os.SCHED_OTHER))
    assert priorities[:2] == [cold] * 2
    assert priorities[2:] == [(*cold[:2], str(os.SCHED_IDLE)) if kept else cold] * 2
    assert pod.termination["restarts"]["count"] == 1
