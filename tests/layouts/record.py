"""Record what the programs here do to their folders, as system calls: `python -m tests.layouts.record PYTHON [NAME]`.

PYTHON is an interpreter that has the six libraries; `make test-layouts` installs one. A recording is a file of lines:
seconds, operation, path, and what the operation needs. Writes in a row are one line. `tests/trainer/test_layouts.py`
replays the recordings, so that `make test` needs none of the libraries.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = ("hf_trainer", "lightning_fit", "dcp_fsdp2", "keras_fit", "accelerate_state", "ignite_handlers")
CALLS = (
    "openat,open,creat,write,writev,pwrite64,close,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,"
    "symlink,symlinkat,link,linkat,ftruncate,copy_file_range,sendfile"
)
_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)")
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
_HELD = re.compile(r"^(\d+)<([^>]*)>")
_AT = re.compile(r'(?:AT_FDCWD|\d+)<([^>]*)>, "((?:[^"\\]|\\.)*)"')

Operation = tuple[float, str, str, str]


def calls_in(trace: Path) -> Iterator[tuple[float, str, str, int]]:
    """Yield time, name, arguments and result of each call; one that was interrupted at its end."""
    begun: dict[str, str] = {}
    for line in trace.read_text(errors="replace").splitlines():
        if not (match := _LINE.match(line)):
            continue
        process, at, text = match.groups()
        if text.endswith("<unfinished ...>"):
            begun[process] = text.removesuffix("<unfinished ...>").rstrip()
            continue
        if text.startswith("<... "):
            text = begun.pop(process, "") + text.partition("resumed>")[2]
        if match := _CALL.match(text):
            yield float(at), match[1], match[2], int(match[3])


def operations_in(trace: Path, folder: str) -> Iterator[Operation]:
    """Yield what happens to a folder. A write's last field: bytes, and `zip` at the beginning of an archive."""
    held: Counter[tuple[str, str]] = Counter()
    archives: set[str] = set()

    def inside(path: str) -> str | None:
        return path[len(folder) + 1 :] if path.startswith(f"{folder}/") else None

    for at, name, words, result in calls_in(trace):
        pairs = [
            os.path.normpath("/".join(pair) if pair[1][:1] != "/" else pair[1]) for pair in _AT.findall(words)
        ]
        plain = pairs or _WORD.findall(words)
        if name in {"unlink", "unlinkat"} and plain and plain[0].startswith(f"{folder}.saved."):
            yield at, "saved", "", plain[0].rpartition(".")[2]
        elif result < 0 or not words:
            continue
        elif name in {"open", "openat", "creat"}:
            path = inside(plain[0])
            if path and re.search(r"O_WRONLY|O_RDWR", words) and "O_TMPFILE" not in words:
                held[str(result), path] += 1
                yield at, "create" if re.search(r"O_TRUNC|O_EXCL", words) else "open", path, ""
        elif name in {"write", "writev", "pwrite64", "ftruncate", "copy_file_range", "sendfile", "close"}:
            parts = words.split(", ")
            match = _HELD.match(parts[2] if name == "copy_file_range" else words)
            if match and '"PK\\3\\4"' in words:
                archives.add(match[2])
            if match is None or (path := inside(match[2])) is None or not held[match[1], path]:
                continue
            source = _HELD.match(parts[1] if name == "sendfile" else parts[0])
            if name in {"copy_file_range", "sendfile"} and source and source[2] in archives:
                archives.add(match[2])
            if name == "close":
                held[match[1], path] -= 1
                yield at, "close", path, ""
            elif name != "ftruncate":
                yield at, "write", path, f"{result} zip" if match[2] in archives else str(result)
        elif name.startswith("rename"):
            old, new = (inside(path) for path in plain[:2])
            if new and not old:
                raise SystemExit(f"{new}: renamed from outside, which no recording here has had yet")
            if old and new:
                for key in [key for key in held if key[1] == old or key[1].startswith(f"{old}/")]:
                    held[key[0], new + key[1][len(old) :]] += held.pop(key)
                yield at, "rename", old, new
        elif name.startswith("symlink"):
            if path := inside(plain[-1]):
                yield at, "symlink", path, _WORD.findall(words)[0].removeprefix(f"{folder}/")
        elif name.startswith("mkdir"):
            if path := inside(plain[0]):
                yield at, "mkdir", path, ""
        elif name in {"unlink", "unlinkat", "rmdir"}:
            if path := inside(plain[0]):
                yield at, "remove", path, ""
        elif name.startswith("link") and (path := inside(plain[-1])):
            raise SystemExit(f"{path}: a hard link, which no recording here has had yet")


def compact(operations: Iterator[Operation]) -> Iterator[str]:
    """Yield lines, with the writes in a row to one file as one, and the first at 0 s."""
    began: float | None = None
    waiting: Operation | None = None
    for each in operations:
        began = each[0] if began is None else began
        if waiting and each[1] == "write" and each[2] == waiting[2]:
            size = int(waiting[3].split()[0]) + int(each[3].split()[0])
            zipped = " zip" if "zip" in waiting[3] or "zip" in each[3] else ""
            waiting = (waiting[0], "write", each[2], f"{size}{zipped}")
            continue
        if waiting:
            yield _line(waiting, began)
        waiting = each if each[1] == "write" else None
        if waiting is None:
            yield _line(each, began)
    if waiting:
        yield _line(waiting, began or 0.0)


def _line(each: Operation, began: float) -> str:
    return "\t".join([f"{each[0] - began:.4f}", *each[1:]]).rstrip("\t")


def record(python: str, name: str, to: Path) -> None:
    """Run a program under strace, and write what each of its ranks did."""
    ranks = 2 if name == "dcp_fsdp2" else 1
    by = ("-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone") if ranks > 1 else ()
    # As in a pod, temporary files are on another volume.
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        trace, folder = Path(scratch, "trace"), f"{os.path.realpath(scratch)}/folder-RANK"
        subprocess.run(
            [
                *("strace", "-f", "--seccomp-bpf", "-y", "-s", "4", "-ttt", "-e", f"trace={CALLS}"),
                *("-o", str(trace), python, *by, str(HERE / "programs" / f"{name}.py")),
            ],
            env={
                **os.environ,
                "LAYOUT_FOLDER": folder,
                "LAYOUT_EPOCHS": "4",
                "LAYOUT_PAUSE": "0.2",
                "TMPDIR": other,
            },
            check=True,
        )
        for rank in range(ranks):
            lines = [*compact(operations_in(trace, folder.replace("RANK", str(rank))))]
            file = to / (f"{name}-{rank}.tsv" if ranks > 1 else f"{name}.tsv")
            file.write_text("\n".join(lines) + "\n")
            print(f"{file}: {len(lines)} lines")


if __name__ == "__main__":
    for each in sys.argv[2:] or PROGRAMS:
        record(sys.argv[1], each, HERE / "recordings")
