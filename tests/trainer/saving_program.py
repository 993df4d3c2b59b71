"""A training script that saves in one of several ways, and that knows nothing of dtj.

Each file holds the number of its step and a checksum. `state_of` reads a folder as the script does when it starts. At
a given moment of a given save, the script kills its parent, itself or both. It appends what it does to a diary, which
outlives every kill.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SUM_BYTES = hashlib.sha256().digest_size
STEP_BYTES = 8
FILES_OF_A_FOLDER = ("weights", "optimizer", "scheduler")
KEPT = 3
"""So many of its checkpoints the script keeps."""
LONGEST_PAUSE = 60.0
"""On a busy machine, an upload takes long. The pauses of a script that is not killed yet become so long."""
REFUSED = 3
"""The exit code where a file of the restored folder is not whole."""


class Torn(Exception):
    """A file is not as one save wrote it."""


@dataclass
class State:
    """What a folder of checkpoints holds: the newest step that is whole, and what is not whole."""

    step: int = 0
    torn: list[str] = field(default_factory=list)


def content_of(step: int, size: int) -> bytes:
    body = step.to_bytes(STEP_BYTES, "big") + os.urandom(size)
    return body + hashlib.sha256(body).digest()


def step_in(path: Path) -> int:
    """The step of a file. Raises Torn."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Torn(f"{path.parent.name}/{path.name}: {error.strerror}") from error
    body, digest = content[:-SUM_BYTES], content[-SUM_BYTES:]
    if len(body) < STEP_BYTES or hashlib.sha256(body).digest() != digest:
        raise Torn(f"{path.name}: {len(content)} bytes, of which the checksum differs")
    return int.from_bytes(body[:STEP_BYTES], "big")


def _checkpoints(folder: Path) -> list[Path]:
    """The checkpoints by their final names, the oldest first."""
    return sorted(folder.glob("step-*[0-9]"), key=_step_of_name)


def _step_of_name(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _step_of_checkpoint(path: Path) -> int:
    """The step of a file or of a folder whose name has the step. Raises Torn."""
    files = [path / name for name in FILES_OF_A_FOLDER] if path.is_dir() else [path]
    for file in files:
        if (step := step_in(file)) != _step_of_name(path):
            raise Torn(f"{path.name}: {file.name} is of step {step}")
    return _step_of_name(path)


def _step_of_last(folder: Path) -> int:
    """The step of the one file, and of what names it. Raises Torn."""
    last, latest = folder / "last.ckpt", folder / "latest"
    if not os.path.lexists(last) and not os.path.lexists(latest):
        return 0
    step = step_in(last)
    if latest.is_symlink():
        if latest.resolve() != last.resolve():
            raise Torn(f"latest leads to {latest.readlink()}")
    elif latest.exists():
        words = latest.read_text().split()
        # The file is replaced before what names it.
        if len(words) != 2 or words[0] != last.name or int(words[1]) not in (step, step - 1):
            raise Torn(f"latest says {words}, and {last.name} is of step {step}")
    elif step > 1:
        raise Torn("latest is missing")
    return step


def state_of(folder: Path) -> State:
    """What the script finds in its folder."""
    state = State()
    readers: list[Callable[[], int]] = [
        *(lambda path=path: _step_of_checkpoint(path) for path in _checkpoints(folder)),  # type: ignore[misc]
        lambda: _step_of_last(folder),
    ]
    if (again := folder / "model.ckpt").exists():
        readers.append(lambda: step_in(again))
    for read in readers:
        try:
            state.step = max(state.step, read())
        except Torn as error:
            state.torn.append(str(error))
    return state


# --- the ways of saving: each yields its moments ---------------------------------------------------

Save = Callable[[Path, int, int, random.Random], Iterator[str]]


def _write(path: Path, content: bytes, chance: random.Random) -> Iterator[str]:
    half = len(content) // 2
    with path.open("wb", buffering=0) as file:
        file.write(content[:half])
        yield "half"
        time.sleep(chance.choice([0.0, 0.0, 0.3]))
        file.write(content[half:])


def _renamed(folder: Path, step: int, size: int, chance: random.Random) -> Iterator[str]:
    arriving, path = folder / f".step-{step}.tmp", folder / f"step-{step}"
    yield from _write(arriving, content_of(step, size), chance)
    yield "written"
    arriving.rename(path)


def _in_place(folder: Path, step: int, size: int, chance: random.Random) -> Iterator[str]:
    yield from _write(folder / f"step-{step}", content_of(step, size), chance)


def in_place_again(folder: Path, step: int, size: int, chance: random.Random) -> Iterator[str]:
    yield from _write(folder / "model.ckpt", content_of(step, size), chance)


def _filled(folder: Path, step: int, size: int, chance: random.Random, *, pauses: bool) -> Iterator[str]:
    folder.mkdir()
    yield "begun"
    for place, name in enumerate(FILES_OF_A_FOLDER):
        (folder / name).write_bytes(content_of(step, size if place == 0 else 1000))
        if place < len(FILES_OF_A_FOLDER) - 1:
            yield "between"
            time.sleep(chance.choice([0.0, 0.0, 0.9]) if pauses else 0.0)


def _folder(folder: Path, step: int, size: int, chance: random.Random) -> Iterator[str]:
    # dtj knows how many files a folder has by the folder before.
    pauses = any(path.is_dir() for path in _checkpoints(folder))
    yield from _filled(folder / f"step-{step}", step, size, chance, pauses=pauses)


def _renamed_folder(folder: Path, step: int, size: int, chance: random.Random) -> Iterator[str]:
    arriving = folder / chance.choice([f".step-{step}", f"step-{step}.tmp"])
    yield from _filled(arriving, step, size, chance, pauses=True)
    yield "written"
    arriving.rename(folder / f"step-{step}")


def _linked(folder: Path, step: int, size: int, chance: random.Random) -> Iterator[str]:
    arriving, path = folder / f".step-{step}.tmp", folder / f"step-{step}"
    yield from _write(arriving, content_of(step, size), chance)
    yield "written"
    os.link(arriving, path)
    yield "linked"
    arriving.unlink()


def _linked_without_name(folder: Path, step: int, size: int, chance: random.Random) -> Iterator[str]:
    del chance
    above = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    file = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
    content = content_of(step, size)
    os.write(file, content[: size // 2])
    yield "half"
    os.write(file, content[size // 2 :])
    yield "written"
    # Only with a folder's descriptor Python calls linkat, which follows the link of /proc.
    os.link(f"/proc/self/fd/{file}", folder / f"step-{step}", src_dir_fd=above, follow_symlinks=True)
    yield "linked"
    os.close(file)
    os.close(above)


def _last(folder: Path, step: int, size: int, chance: random.Random, *, by_link: bool) -> Iterator[str]:
    arriving, last = folder / ".last.ckpt.tmp", folder / "last.ckpt"
    yield from _write(arriving, content_of(step, size), chance)
    yield "written"
    arriving.rename(last)
    yield "renamed"
    naming = folder / ".latest.tmp"
    naming.unlink(missing_ok=True)
    if by_link:
        naming.symlink_to(last.name)
    else:
        naming.write_text(f"{last.name} {step}\n")
    naming.rename(folder / "latest")


def _last_by_text(folder: Path, step: int, size: int, chance: random.Random) -> Iterator[str]:
    yield from _last(folder, step, size, chance, by_link=False)


def _last_by_link(folder: Path, step: int, size: int, chance: random.Random) -> Iterator[str]:
    yield from _last(folder, step, size, chance, by_link=True)


@dataclass(frozen=True)
class Way:
    """A way of saving. forms: how to save. moments: of each save, and `saved` after it."""

    forms: tuple[Save, ...]
    moments: tuple[str, ...]


WAYS = {
    "rename": Way((_renamed,), ("half", "written", "saved")),
    "in place": Way((_in_place, in_place_again), ("half", "saved")),
    "folder": Way((_folder,), ("begun", "between", "saved")),
    "renamed folder": Way((_renamed_folder,), ("begun", "between", "written", "saved")),
    "link": Way((_linked, _linked_without_name), ("half", "written", "linked", "saved")),
    "one name": Way((_last_by_text, _last_by_link), ("half", "written", "renamed", "saved")),
}


class Program:
    """The script."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._chance = random.Random(options.seed)
        self._diary = os.open(options.diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._stopped = False
        self._struck = False

    def run(self) -> int:
        options, folder = self._options, self._options.checkpoints
        if options.on_term != "dies":
            signal.signal(signal.SIGTERM, self._stop)
        state = state_of(folder)
        self._note("started", {"pid": os.getpid(), "step": state.step, "torn": state.torn})
        if state.torn:
            return REFUSED
        save, step, pause = WAYS[options.way].forms[options.form], state.step, options.pause
        last = step + options.steps if options.steps else sys.maxsize
        while step < last and not self._stopped:
            step += 1
            for moment in save(folder, step, options.size, self._chance):
                self._reach(step - state.step, moment)
            self._say(f"step {step} is saved {self._chance.getrandbits(256):x}")
            self._reach(step - state.step, "saved")
            for old in _checkpoints(folder)[:-KEPT]:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            time.sleep(pause)
            pause = min(1.3 * pause, LONGEST_PAUSE)
        if not self._stopped:
            (folder.parent / "model/model.bin").write_bytes(content_of(step, 1000))
            self._say(f"trained to step {step}")
            return 0
        self._say(f"told to stop after step {step}")
        return 0 if options.on_term == "ends with 0" else 128 + signal.SIGTERM

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def _reach(self, saves: int, moment: str) -> None:
        """Kill at the given moment."""
        options = self._options
        if self._struck or saves < options.kill_at_save or moment != options.kill_at:
            return
        self._struck = True
        self._note("moment", moment)
        time.sleep(options.kill_after)
        if options.kill in ("agent", "both"):
            os.kill(os.getppid(), signal.SIGKILL)
        if options.kill in ("program", "both"):
            os.kill(os.getpid(), signal.SIGKILL)
        if options.kill == "term":
            os.kill(os.getppid(), signal.SIGTERM)
        while not self._stopped:
            signal.pause()

    def _say(self, line: str) -> None:
        """Print a line, then note it: the diary has no line that was not printed."""
        os.write(sys.stdout.fileno(), f"{line}\n".encode())
        self._note("line", line)

    def _note(self, what: str, content: object) -> None:
        os.write(self._diary, f"{json.dumps([what, content])}\n".encode())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--diary", required=True)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--form", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True)
    parser.add_argument("--steps", type=int, default=0, help="0: train until killed")
    parser.add_argument("--on-term", choices=["dies", "ends with 0", "ends with 143"], default="dies")
    parser.add_argument("--kill", choices=["agent", "program", "both", "term"])
    parser.add_argument("--kill-at-save", type=int, default=0)
    parser.add_argument("--kill-at", default="")
    parser.add_argument("--kill-after", type=float, default=0.0)
    with suppress(BrokenPipeError):
        return Program(parser.parse_args()).run()
    return 1


if __name__ == "__main__":
    sys.exit(main())
