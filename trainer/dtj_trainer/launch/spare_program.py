"""Runs a Python program as `python` runs the program itself, at once or after a wait with imported modules.

    python [FLAGS] spare_program.py record:MEMORY WORDS…
    python [FLAGS] spare_program.py wait:MEMORY:SOCKET WORDS…

WORDS are what follows the flags in the user's command: a script, or -m and a module, and their arguments. MEMORY is
the descriptor of a memory file. `record` runs the program at once, and notes there what the program imports. `wait`
imports what is noted there, then says so on the descriptor SOCKET, and runs the program when it is told to.

The file is run by its path in the interpreter of the program, which may lack dtj_trainer. What the file imports must
not hide modules of the program with the same names, so that the file imports built-in modules and few others.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # Not imported from `typing`: the program may not import that module.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType, TracebackType
    from typing import Any, NoReturn

RECORD_BYTES = 1 << 20
"""The size of the memory file. What does not fit is not noted."""
OOM_SCORE = "1000"
"""The oom_score_adj of a process that waits: when memory is short, the kernel kills this process first."""
READY, STARTED, FAILED = b"ready\n", b"started\n", b"failed "
"""The lines that the process sends on the socket. The reason of the failure follows FAILED."""
_OOM_FILE = "/proc/self/oom_score_adj"
_HEAD = 4
"""The bytes of the number before each entry of the memory file: the length of the entry."""
_NEVER = ("mpi4py.MPI", "torch._inductor")
"""Modules that are not imported ahead, nor those below them: the import of MPI initializes MPI, and the import of the
compiler starts processes."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/console")
_NO_DEVICES = ("/dev/pts/", "/dev/shm/")  # noqa: S108 - compared, not written
_TEMPORARY = ("/tmp/", "/dev/shm/", (os.environ.get("TMPDIR") or "/tmp") + "/")  # noqa: S108 - the default of all programs
_FOLDERS = ("site-packages", "dist-packages")


# These functions give the interpreter the state that `python` has when it begins a script or a module.


def _original(words: Sequence[str]) -> list[str]:
    """Return the user's command: the interpreter and its flags, then WORDS."""
    with open("/proc/self/cmdline", "rb") as file:
        started = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    return started[: len(started) - len(sys.argv)] + list(words)


def _absolute(script: str) -> str:
    """Return the path of a script as `__file__` and tracebacks have it."""
    return script if script.startswith("/") else f"{os.getcwd()}/{script}"


def _set_up(words: Sequence[str], command: Sequence[str]) -> None:
    """Give the interpreter the arguments, the first entry of the path and the module of a program."""
    by_module = words[0] == "-m"
    sys.argv[:] = ["-m", *words[2:]] if by_module else words
    sys.orig_argv[:] = command
    if _has_own_entry():
        first = os.getcwd() if by_module else os.path.dirname(os.path.realpath(words[0]))
        sys.path[0] = first
    main = type(sys)("__main__")
    given: dict[str, object] = {"__builtins__": sys.modules["builtins"]}
    # Python 3.13 and earlier versions set this attribute.
    if "__annotations__" in vars(sys.modules["__main__"]):
        given["__annotations__"] = {}
    if not by_module:
        path = _absolute(words[0])
        loader = sys.modules["_frozen_importlib_external"].SourceFileLoader("__main__", path)
        given |= {"__file__": path, "__cached__": None, "__loader__": loader}
    vars(main).update(given)
    sys.modules["__main__"] = main


def _has_own_entry() -> bool:
    """Whether the path begins with the folder of the program: not with -I and -P."""
    return not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))


# These functions run the program.


def _run(words: Sequence[str], command: Sequence[str]) -> None:
    """Run the program. Where `python` would not run it as one source file, become `python` itself."""
    if words[0] == "-m":
        import runpy

        _call(runpy._run_module_as_main, words[1])  # type: ignore[attr-defined]  # noqa: SLF001 - as `python` does
        return
    source = None if _is_application(words[0]) else _source(words[0])
    if source is None:
        os.execvp(command[0], list(command))  # noqa: S606 - the user's command
    _call(_exec, source, _absolute(words[0]))


def _is_application(script: str) -> bool:
    """Whether a path is a folder or an archive, in which `python` runs a module."""
    for hook in sys.path_hooks:
        try:
            hook(script)
        except ImportError:
            continue
        return True
    return False


def _source(script: str) -> bytes | None:
    """Return the source text; None for a file that can't be read or is compiled."""
    try:
        with open(script, "rb") as file:
            text = file.read()
    except OSError:
        return None
    magic: bytes = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER
    return None if script.endswith(".pyc") or text.startswith(magic) else text


def _exec(source: bytes, path: str) -> None:
    code: CodeType = compile(source, path, "exec", dont_inherit=True)
    exec(code, sys.modules["__main__"].__dict__)  # noqa: S102 - the user's program


def _call(function: Callable[..., object], *arguments: object) -> None:
    """Call a function. A traceback that ends the program lacks the frames of this file."""
    try:
        function(*arguments)
    except SystemExit:
        raise
    except BaseException:
        shown = sys.excepthook

        def show(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
            while frames and frames.tb_frame.f_code.co_filename == _call.__code__.co_filename:
                frames = frames.tb_next
            shown(kind, error.with_traceback(frames), frames)

        sys.excepthook = show
        raise


# _Recorder notes what the program imports, each time with the environment and the sys.path that the import finds.


class _Recorder:
    """A finder that finds nothing, and notes in a memory file what is asked for."""

    def __init__(self, descriptor: int) -> None:
        from _thread import RLock

        known = set(sys.modules)
        from marshal import dumps
        from mmap import mmap

        # Map the file: the program may close all descriptors, and open another file with the same number.
        self._memory = mmap(descriptor, RECORD_BYTES)
        os.close(descriptor)
        for name in set(sys.modules) - known:  # The program may have a module of its own with such a name.
            del sys.modules[name]
        self._lock, self._dumps = RLock(), dumps
        self._at: int | None = 0
        self._pid = os.getpid()
        self._environment: dict[bytes, bytes] | None = None
        self._path: list[str] | None = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Note an import, but no question whether a module exists, and nothing in a forked process."""
        del path, target
        if self._at is not None and os.getpid() == self._pid and _is_import():
            try:
                with self._lock:
                    self._note(name)
            except Exception:  # noqa: BLE001 - whatever it is, the program goes on
                self._at = None

    def _note(self, name: str) -> None:
        environment, path = vars(os.environ)["_data"], [each for each in sys.path if type(each) is str]
        changed = None if environment == self._environment else dict(environment)
        moved = None if path == self._path else path
        entry = self._dumps((name, changed, moved), 2)
        if self._at is None or (begin := self._at + _HEAD) + len(entry) > RECORD_BYTES:
            self._at = None
            return
        self._memory[begin : begin + len(entry)] = entry
        # Write the length last: another process may read the entries meanwhile, and ends at a length of 0.
        self._memory[self._at : begin] = len(entry).to_bytes(_HEAD, "little")
        self._at = begin + len(entry)
        self._environment, self._path = changed or self._environment, path


def _is_import() -> bool:
    """Whether the finder that calls this is asked by an import. `importlib.util.find_spec` asks without importing."""
    asking = sys._getframe(1).f_back  # noqa: SLF001
    caller = asking and asking.f_back
    return caller is not None and caller.f_code.co_name == "_find_and_load_unlocked"


def _noted(memory: bytes) -> Iterator[Any]:
    """Yield the entries of a memory file, up to one that is just being written."""
    import marshal

    at = 0
    while length := int.from_bytes(memory[at : at + _HEAD], "little"):
        at += _HEAD
        try:
            yield marshal.loads(memory[at : at + length])  # noqa: S302 - the program of this job wrote it
        except (ValueError, EOFError, TypeError):
            return
        at += length


# These classes import ahead what an earlier start of the program has imported from installed distributions.


class _Places:
    """Finds modules as the other finders do, except modules of the program itself, which are not imported ahead."""

    def __init__(self) -> None:
        self._standard = os.path.dirname(os.__file__) + "/"
        self._installed = {sys.path[0]: False} if _has_own_entry() else {}
        self.fault = ""
        """Why the interpreter must not be used."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Return the spec of an installed module, or of one of Python's own."""
        spec: ModuleSpec | None = self._find(name, path, target)
        if spec is None or not _is_import():
            return spec
        if _is_below(name, _NEVER[:1]):
            self.fault = f"an import needs {name}"
        elif not all(self._is_standard(place) or self.is_installed(place) for place in _places(spec)):
            self.fault = f"an import needs the module {name} of the program"
        else:
            return spec
        raise ModuleNotFoundError(self.fault, name=name)

    def _find(self, name: str, path: Sequence[str] | None, target: object = None) -> Any:
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            if find and (spec := find(name, path, target)) is not None:
                return spec
        return None

    def _is_standard(self, place: str) -> bool:
        return (
            place in ("built-in", "frozen") or place.startswith(self._standard) or not place.startswith("/")
        )

    def is_installed(self, place: str) -> bool:
        """Whether a file belongs to an installed distribution, by its folder."""
        return any(place.startswith(entry + "/") and self._has_distributions(entry) for entry in sys.path)

    def _has_distributions(self, entry: str) -> bool:
        if entry not in self._installed:
            folder = entry.rpartition("/")[2]
            self._installed[entry] = folder in _FOLDERS or folder.endswith(".egg") or _has_information(entry)
        return self._installed[entry]

    def wanted(self, name: str, own: str) -> bool:
        """Whether a module is imported ahead. own: the package that the program is a module of."""
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ("__main__", own) or _is_below(name, _NEVER):
            return False
        found = sys.modules.get(top)
        spec = self._find(top, None) if found is None else found.__spec__
        places = _places(spec) if spec else []
        return bool(places) and all(map(self.is_installed, places))


def _places(spec: ModuleSpec) -> list[str]:
    """Return where a module is: its file, or the folders of a package without one."""
    return list(spec.submodule_search_locations or ()) if spec.origin is None else [spec.origin]


def _is_below(name: str, packages: Sequence[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def _has_information(folder: str) -> bool:
    """Whether a folder of the path has distributions, as one that `pip install --target` made."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


class _State:
    """Gives imports the environment and the path that the program had made for them, until `restore`."""

    def __init__(self) -> None:
        self._data: dict[bytes, bytes] = vars(os.environ)["_data"]
        self._former: dict[bytes, tuple[bytes | None, bytes | None]] = {}
        """The value before and the value given, by variable."""
        self._path = self._known = list(sys.path)
        self._given = self._moved = False
        """Whether `give` has set sys.path to that of the program, and whether an import has changed sys.path."""

    def give(self, environment: Mapping[bytes, bytes], path: list[str]) -> None:
        """Make environment and path those that the program had before the import that follows."""
        for name in self._data.keys() | environment.keys():
            wanted, here = environment.get(name), self._data.get(name)
            if wanted != here:
                before = self._former[name][0] if name in self._former else here
                self._former[name] = (before, wanted)
                _set(name, wanted)
        self._look()
        if sys.path != path:
            sys.path[:] = path
            self._given = True
        self._known = list(sys.path)

    def _look(self) -> None:
        self._moved = self._moved or sys.path != self._known

    def restore(self) -> None:
        """Take back what `give` has changed. What the imports have changed stays."""
        for name, (before, given) in self._former.items():
            if self._data.get(name) == given:
                _set(name, before)
        self._look()
        if self._given:
            sys.path[:] = self._path

    @property
    def fault(self) -> str:
        """Why the state can't be restored; empty if it can. Changes by the program and by imports look the same."""
        return "the program and its imports change sys.path" if self._given and self._moved else ""


def _set(name: bytes, value: bytes | None) -> None:
    if value is not None:
        os.environb[name] = value
    else:
        os.environb.pop(name, None)


class _Imports:
    """Imports modules in a thread of idle priority, beside the main thread, which keeps its priority.

    A thread without privileges can't leave idle priority again, and threads that it starts inherit the priority.
    Libraries such as OpenBLAS start threads when they are loaded: the main thread loads each extension module first.
    """

    def __init__(self, memory: bytes, own: str) -> None:
        import _ctypes
        import _thread
        import threading  # In this thread: `threading` takes the thread that imports it first for the main thread.

        del threading
        self._memory, self._own = memory, own
        self._dlopen = _ctypes.dlopen
        self._asked, self._answered = _thread.allocate_lock(), _thread.allocate_lock()
        self._asked.acquire()
        self._answered.acquire()
        self._library: str | None = ""
        """What the main thread is asked to load; None: all is imported."""
        self._thread = 0
        self._places, self._state = _Places(), _State()
        self._error = ""

    def run(self) -> str:
        """Import all; return why the interpreter must not be used, or an empty text. Call it in the main thread."""
        import _thread

        loader = sys.modules["_frozen_importlib_external"].ExtensionFileLoader
        create_module, mkdir = loader.create_module, os.mkdir

        def load_first(this: Any, spec: ModuleSpec) -> ModuleType:
            if _thread.get_ident() == self._thread and spec.origin:
                self._library = spec.origin
                self._asked.release()
                self._answered.acquire()
            module: ModuleType = create_module(this, spec)
            return module

        def note(path: Any, *arguments: Any, **named: Any) -> None:
            mkdir(path, *arguments, **named)
            if os.path.abspath(os.fsdecode(path)).startswith(_TEMPORARY):
                # dtj-launch removes such folders before the next round, so that its program would miss them.
                self._error = f"an import made the folder {path}"

        loader.create_module, os.mkdir = load_first, note
        sys.meta_path.insert(0, self._places)
        try:
            _thread.start_new_thread(self._work, ())
            while self._asked.acquire() and self._library is not None:
                try:
                    self._dlopen(self._library, sys.getdlopenflags())
                except OSError:
                    pass  # The import then fails, too, and its error has the reason.
                self._answered.release()
        finally:
            sys.meta_path.remove(self._places)
            loader.create_module, os.mkdir = create_module, mkdir
            self._state.restore()
        return self._error or self._places.fault or self._state.fault or _fault(self._native)

    def _work(self) -> None:
        import _thread

        self._thread, self._native = _thread.get_ident(), _thread.get_native_id()
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except OSError:
            pass  # The container refuses it: the imports have the priority of the program.
        try:
            self._import()
        except BaseException as error:  # noqa: BLE001 - whatever it is, another interpreter runs the program
            self._error = repr(error)
        finally:
            self._library = None
            self._asked.release()

    def _import(self) -> None:
        environment: dict[bytes, bytes] = {}
        path: list[str] = []
        for name, changed, moved in _noted(self._memory):
            environment, path = changed or environment, moved or path
            if name in sys.modules:
                continue
            self._state.give(environment, path)
            if self._places.wanted(name, self._own):
                self._try(name)
            if self._error or self._places.fault or self._state.fault:
                return

    def _try(self, name: str) -> None:
        """Import a module. A failed import must leave no module behind: the program tries the import again."""
        known = len(sys.modules)
        try:
            __import__(name)
        except BaseException as error:  # noqa: BLE001 - it may even exit
            if len(sys.modules) > known:
                self._error = f"the import of {name} fails: {error!r}"


def _fault(ended: int) -> str:
    """Return what the imports have done that an interpreter must not have done; an empty text if nothing.

    ended: the thread of the imports.
    """
    import time

    tasks = "/proc/self/task"
    while str(ended) in os.listdir(tasks):
        time.sleep(0.001)
    for task in os.listdir(tasks):
        try:
            if os.sched_getscheduler(int(task)) != os.sched_getscheduler(0):
                return "an import started a thread, which has the low priority of the imports"
            with open(f"{tasks}/{task}/children") as file:
                if file.read().strip():
                    return "an import started a process"
        except (FileNotFoundError, ProcessLookupError):
            continue  # The thread has ended, or the kernel is built without these files.
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if target.startswith("/dev/") and target not in _DEVICES and not target.startswith(_NO_DEVICES):
            return f"an import opened {target}"
    return ""


# _wait imports modules, and waits for the message to run the program.


def _wait(memory: int, socket: int, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Import, say READY, and wait; return WORDS and the command that the process was told to run."""
    import marshal

    def end(why: str) -> NoReturn:
        try:
            os.write(socket, FAILED + os.fsencode(why.replace("\n", " ")[:500]) + b"\n")
            # Wait to be killed together with the processes that the imports have started.
            os.read(socket, 1)
        finally:
            os._exit(0)

    try:
        former = _set_oom_score(OOM_SCORE)
        noted = os.pread(memory, RECORD_BYTES, 0)
        os.close(memory)
        own = words[1].partition(".")[0] if words[0] == "-m" else ""
        if why := _Imports(noted, own).run():
            end(why)
        os.write(socket, READY)
        told = b""
        while part := os.read(socket, 1 << 16):
            told += part
        if not told:
            os._exit(0)
        command, rest, environment, folder, pid = marshal.loads(told)  # noqa: S302 - dtj-launch wrote it
        if pid != os.getpid():
            end("the command is a wrapper that starts the interpreter as a child process")
        _set_oom_score(former)
        os.setpgid(0, 0)
        os.chdir(folder)
        for name, value in environment.items():
            _set(name, value)
    except KeyboardInterrupt:
        os._exit(0)
    except OSError as error:
        end(str(error))
    os.write(socket, STARTED)
    os.close(socket)
    return rest, command


def _set_oom_score(score: str) -> str:
    """Set the score by which the kernel chooses what to kill; return the former. Raises OSError."""
    with open(_OOM_FILE, "r+") as file:
        former = file.read().strip()
        file.seek(0)
        file.write(score)
    return former


def main() -> None:
    """Run the file's command line."""
    mode, *words = sys.argv[1:]
    command = _original(words)
    kind, *descriptors = mode.split(":")
    # Before Python 3.10, a script can't set all that `python` sets: run the program by `python`, without a spare.
    if sys.version_info < (3, 10):  # noqa: UP036 - the interpreter is the user's
        os.execvp(command[0], command) if kind == "record" else os._exit(0)  # noqa: S606 - the user's command
    try:
        for descriptor in map(int, descriptors):
            os.set_inheritable(descriptor, False)
    except OSError:
        # A wrapper of the interpreter has closed the descriptors, and may start another interpreter the next time.
        descriptors = []
    if _has_own_entry():
        sys.path[0] = os.path.dirname(os.__file__)
    recorder = _Recorder(int(descriptors[0])) if kind == "record" and descriptors else None
    _set_up(words, command)
    if recorder:
        sys.meta_path.insert(0, recorder)
    elif kind == "wait":
        words, command = (
            _wait(int(descriptors[0]), int(descriptors[1]), words) if descriptors else os._exit(0)
        )
        _set_up(words, command)
    _run(words, command)


if __name__ == "__main__":
    main()
