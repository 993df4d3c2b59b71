"""The archive of `spec.code`: equal bytes for equal folders, the same files when unpacked, and what is refused."""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.api.errors import Unusable
from dtj.client.code_folder import pack, select
from dtj_trainer.contract import code_archive
from dtj_trainer.contract.code_archive import CodeError, digest_of, unpack

NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0", categories=["L", "N", "P", "Z"]), min_size=1
)
PARTS = NAMES.map(lambda name: f"f{name}").filter(lambda name: len(name.encode()) < 200 and name != "f")
TREES = st.dictionaries(
    st.lists(PARTS, min_size=1, max_size=4).map(tuple),
    st.tuples(st.binary(max_size=700), st.booleans()),
    max_size=6,
)


def written(
    tree: dict[tuple[str, ...], tuple[bytes, bool]], folder: Path, umask: int, order: Callable[..., list]
) -> dict:
    """Write a tree in an order, without what is in the way of a file; return what was written."""
    done = {}
    before = os.umask(umask)
    try:
        for parts, (content, executable) in order(tree.items()):
            path = folder.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            if executable:
                path.chmod(path.stat().st_mode | stat.S_IXUSR)
            done["/".join(parts)] = (content, executable)
    finally:
        os.umask(before)
    return done


def archive_of(folder: Path, archive: Path) -> str:
    with archive.open("wb") as file:
        return pack(select(folder), file).digest


@settings(max_examples=30, deadline=None)
@given(TREES)
def test_the_same_tree_has_the_same_bytes_and_comes_back(tree: dict) -> None:
    names = set(tree)
    tree = {k: v for k, v in tree.items() if not any(k[:n] in names for n in range(1, len(k)))}
    tree[("train.py",)] = (b"print(1)", False)
    with tempfile.TemporaryDirectory() as place:
        top = Path(place)
        done = written(tree, top / "a", 0o022, sorted)
        written(tree, top / "b", 0o077, lambda items: sorted(items, reverse=True))
        for path in (top / "b").rglob("*"):
            os.utime(path, (1, 1))
        digest = archive_of(top / "a", top / "a.tar.gz")
        assert archive_of(top / "b", top / "b.tar.gz") == digest
        assert (top / "a.tar.gz").read_bytes() == (top / "b.tar.gz").read_bytes()
        before = os.umask(0o077)
        try:
            unpack(top / "a.tar.gz", digest, top / "code")
        finally:
            os.umask(before)
        back = {
            str(path.relative_to(top / "code")): (path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR))
            for path in (top / "code").rglob("*")
            if path.is_file()
        }
        assert back == {
            name: value
            for name, value in done.items()
            if not name.endswith((".pyc", ".pyo", ".pyd", ".egg-info"))
        }
        assert {path.stat().st_mode & 0o777 for path in (top / "code").rglob("*")} <= {0o644, 0o755}


def test_another_time_zone_and_another_process_give_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("print(1)")
    digest = archive_of(tmp_path / "code", tmp_path / "a")
    program = (
        "import sys, io, pathlib; from dtj.client.code_folder import pack, select;"
        "print(pack(select(pathlib.Path(sys.argv[1])), io.BytesIO()).digest)"
    )
    other = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "code")],
        env={**os.environ, "TZ": "Pacific/Apia", "LC_ALL": "C", "PYTHONHASHSEED": "7"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert other.stdout.strip() == digest
    assert (tmp_path / "a").read_bytes()[3:10] == bytes(5) + (tmp_path / "a").read_bytes()[8:10]


def refused(tmp_path: Path, content: bytes, digest: str | None = None) -> str:
    archive = tmp_path / "archive"
    archive.write_bytes(content)
    with pytest.raises(CodeError) as refusal:
        unpack(archive, digest or digest_of(archive), tmp_path / "code")
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]
    return str(refusal.value)


def tar_of(*entries: tarfile.TarInfo, content: bytes = b"", after: bytes = bytes(1024)) -> bytes:
    blocks = b""
    for entry in entries:
        entry.size = len(content) if entry.isreg() else 0
        blocks += entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        blocks += content + bytes(-len(content) % 512) if entry.isreg() else b""
    return gzip.compress(blocks + after, mtime=0)


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tar_of(entry("/etc/passwd")), "'/etc/passwd' is an absolute path: a name must be"),
        (tar_of(entry("a/../../b")), "'a/../../b' leads out of the folder"),
        (tar_of(entry("a", tarfile.SYMTYPE, "/etc")), "'a' is a link: only files and folders are allowed"),
        (tar_of(entry("a", tarfile.LNKTYPE, "b")), "'a' is a hard link"),
        (tar_of(entry("a", tarfile.CHRTYPE)), "'a' is a device"),
        (tar_of(entry("a", tarfile.FIFOTYPE)), "'a' is a pipe"),
        (tar_of(entry("a"), entry("./a")), "two entries have the name './a'"),
        (tar_of(entry("a"), entry("a/b")), "'a/b' is a file and a folder"),
        (tar_of(entry("a\udcff")), "the name of an entry is not UTF-8"),
        (tar_of(entry("a"), content=b"x" * 600)[:-20], "the archive is no complete tar.gz"),
        (tar_of(entry("a"), after=b""), "the archive ends in the middle of an entry"),
        (tar_of(entry("a"), after=bytes(512) + b"more"), "the archive has more bytes after its end"),
        (tar_of(entry("a"), after=b"x" * 512), "the archive is no tar"),
        (b"no gzip", "the archive is no complete tar.gz"),
    ],
)  # fmt: skip
def test_a_hostile_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, content: bytes, message: str
) -> None:
    assert refused(tmp_path, content).startswith(message)


def test_another_digest_is_refused_and_both_are_told(tmp_path: Path) -> None:
    asked = "sha256:" + "0" * 64
    content = tar_of(entry("a"))
    message = refused(tmp_path, content, asked)
    assert asked in message
    assert digest_of(tmp_path / "archive") in message


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bomb(name: str, size: int) -> bytes:
        info = tarfile.TarInfo(name)
        info.size = size
        return info.tobuf(tarfile.GNU_FORMAT)

    zeros = io.BytesIO()
    with gzip.GzipFile(fileobj=zeros, mode="wb", compresslevel=9) as file:
        file.write(bomb("zeros", 1024**3 + 1))
    assert refused(tmp_path, zeros.getvalue()) == (
        "the files have at least 1,073,741,825 bytes, and the maximum is 1,073,741,824"
    )
    long_name = tarfile.TarInfo("././@LongLink")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, 1024**3
    huge = gzip.compress(long_name.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    assert refused(tmp_path, huge) == "the name of an entry has 1,073,741,824 bytes, and the maximum is 4,096"
    monkeypatch.setattr(code_archive, "MOST_ENTRIES", 50)
    entries = b"".join(bomb(f"{number}", 0) for number in range(51))
    assert refused(tmp_path, gzip.compress(entries)).startswith(
        "there are at least 51 files and folders, and the maximum is 50"
    )
    padded = gzip.compress(entry("a").tobuf(tarfile.GNU_FORMAT) + bytes(2 * 1024**2))
    assert refused(tmp_path, padded) == "the archive has more bytes after its end-of-archive entry"


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("UNPACKED_BYTES", "the files up to 'b.py' have 16 bytes, and the maximum is 9"),
        ("PACKED_BYTES", r"the archive has at least \d+ bytes, and the maximum is 9"),
        ("MOST_ENTRIES", "has more than 9 files and folders"),
    ],
)
def test_a_folder_above_a_limit_is_refused_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, message: str
) -> None:
    for name in "abcdefghij":
        (tmp_path / f"{name}.py").write_text("print(1)")
    monkeypatch.setattr(code_archive, limit, 9)
    with pytest.raises(Unusable, match=message):
        pack(select(tmp_path), io.BytesIO())


def test_an_archive_above_the_limit_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_archive, "PACKED_BYTES", 9)
    assert refused(tmp_path, b"0123456789") == "the archive has 10 bytes, and the maximum is 9"


def test_an_archive_of_gnu_tar_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "in/data").mkdir(parents=True)
    (tmp_path / "in/train.py").write_text("print(1)")
    (tmp_path / f"in/data/{'long' * 40}").write_text("x")
    subprocess.run(["tar", "--format=gnu", "-czf", tmp_path / "a", "-C", tmp_path / "in", "."], check=True)
    unpack(tmp_path / "a", digest_of(tmp_path / "a"), tmp_path / "code")
    assert subprocess.run(["diff", "-r", tmp_path / "in", tmp_path / "code"], check=False).returncode == 0


def test_an_unpacked_folder_replaces_the_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/train.py").write_text("print(1)")
    digest = archive_of(tmp_path / "in", tmp_path / "a")
    unpack(tmp_path / "a", digest, tmp_path / "code")
    (tmp_path / "code/train.py").write_text("changed")
    (tmp_path / "code/more").mkdir()
    unpack(tmp_path / "a", digest, tmp_path / "code")
    assert [path.name for path in (tmp_path / "code").iterdir()] == ["train.py"]
    assert (tmp_path / "code/train.py").read_text() == "print(1)"


def test_the_memory_of_packing_and_unpacking_does_not_grow_with_the_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    block = os.urandom(1024**2)
    with (tmp_path / "in/large").open("wb") as file:
        for _ in range(30):
            file.write(block)
    (tmp_path / "in/.dtjignore").write_text("!large")
    program = """
import resource, sys, pathlib
from dtj.client.code_folder import pack, select
from dtj_trainer.contract.code_archive import unpack
top = pathlib.Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open(top / "a", "wb") as file:
    packed = pack(select(top / "in"), file)
unpack(top / "a", packed.digest, top / "code")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 16


def test_code_that_is_too_large_has_a_remedy_and_other_faults_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/train.py").write_text("print(1)")
    selection = select(tmp_path / "in")
    monkeypatch.setattr(code_archive, "UNPACKED_BYTES", 7)
    with pytest.raises(Unusable, match="have 8 bytes, and the maximum is 7") as refusal:
        pack(selection, io.BytesIO())
    assert refusal.value.remedy == "name what is not needed in .dtjignore"
    (tmp_path / "in/train.py").unlink()
    os.mkfifo(tmp_path / "in/train.py")
    with pytest.raises(Unusable, match="neither a file nor a folder") as refusal:
        pack(selection, io.BytesIO())
    assert refusal.value.remedy is None


def test_what_stays_out_of_a_folder(tmp_path: Path) -> None:
    for name in (
        "train.py", "pkg/a.py", "pkg/__pycache__/a.pyc", ".git/config", ".env", "venv/pyvenv.cfg", "venv/x.py",
        "runs/events", "keep.log", "a.log", ".hidden", "node_modules/x.js",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "large.bin").write_bytes(bytes(11 * 1024**2))
    (tmp_path / "needed.bin").write_bytes(bytes(11 * 1024**2))
    (tmp_path / ".dtjignore").write_text("runs/\n*.log\n!keep.log\n!needed.bin\n!.hidden\n")
    (tmp_path / "link.py").symlink_to("train.py")
    chosen = select(tmp_path)
    assert [name for name, _ in chosen.entries] == [
        ".hidden", "keep.log", "link.py", "needed.bin", "pkg", "pkg/a.py", "train.py",
    ]  # fmt: skip
    assert [(each.name, each.why) for each in chosen.left_out] == [
        ("large.bin", "large (11 MiB); `!large.bin` in .dtjignore includes it"),
        ("venv/", "a Python environment"),
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda top: (top / "l").symlink_to("/etc/passwd"),
            "'l' is a link to /etc/passwd, which is not in the folder",
        ),
        (lambda top: (top / "l").symlink_to("pkg"), "'l' is a link to a folder"),
        (lambda top: (top / "pkg/l").symlink_to("../none"), "which does not exist"),
        (lambda top: os.mkfifo(top / "l"), "'l' is neither a file nor a folder"),
        (lambda top: Path(os.fsdecode(os.fsencode(top) + b"/\xff")).touch(), "is not UTF-8"),
    ],
)
def test_a_folder_that_can_not_be_packed(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    (tmp_path / "pkg").mkdir()
    make(tmp_path)
    with pytest.raises(Unusable) as refusal:
        select(tmp_path)
    assert message in str(refusal.value)


def test_a_file_that_changes_while_it_is_packed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print(1)")

    class Growing(io.BytesIO):
        def write(self, content: object) -> int:
            (tmp_path / "train.py").write_text("print(12)")
            return super().write(content)  # type: ignore[arg-type]

    monkeypatch.setattr(code_archive, "_CHUNK", 4)
    with pytest.raises(Unusable, match=r"changed while it was packed"):
        pack(select(tmp_path), Growing())


def test_the_home_folder_is_not_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for folder in (tmp_path / "me", tmp_path, Path("/")):
        with pytest.raises(Unusable, match="dtj would send all files in it"):
            select(folder)
