"""The archive of `spec.code`: a folder as a deterministic tar.gz. Standard library only.

The same files give the same bytes, whoever packs them: names are sorted, and no entry has a time or an owner. The
reader accepts regular files and folders in the GNU or ustar format, and trusts neither names nor sizes.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

DIGEST = r"^sha256:[0-9a-f]{64}$"
CONFIG_MAP_BYTES = 512 * 1024
"""The most bytes of an archive in a ConfigMap. The API server accepts objects of 1 MiB, and base64 takes a third
more."""
PACKED_BYTES = 256 * 1024**2
UNPACKED_BYTES = 1024**3
MOST_ENTRIES = 50_000
"""The most files and folders in an archive."""
_NAME_BYTES = 4096
_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1024**2
_FILE_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
}


class CodeError(Exception):
    """A folder can't be packed, or an archive can't be used. The message says why."""


class CodeTooLarge(CodeError):
    """A folder or an archive has too many bytes, files or folders."""


@dataclass(frozen=True)
class Packed:
    """The digest, the sizes and the number of entries of an archive."""

    digest: str
    """`sha256:` and the SHA-256 of the archive in hex digits."""
    packed_bytes: int
    unpacked_bytes: int
    entries: int
    """Number of files and folders."""


def pack(entries: Iterable[tuple[str, Path]], archive: BinaryIO, compresslevel: int = 6) -> Packed:
    """Write files and folders to an archive. The memory does not depend on their size.

    entries: the name in the archive, with `/` between folders, and the path of each file or folder.

    Raises CodeError for a file that is neither a regular file nor a folder, that changes meanwhile; CodeTooLarge
    where a limit is exceeded; OSError where a file can't be read or the archive can't be written.
    """
    given = sorted(entries)
    _check_count(len(given))
    out = _Hashing(archive)
    unpacked = 0
    with gzip.GzipFile(filename="", mode="wb", compresslevel=compresslevel, fileobj=out, mtime=0) as stream:
        for name, path in given:
            _parts(name)
            unpacked += _add(stream, name, path, UNPACKED_BYTES - unpacked)
        stream.write(bytes(2 * _BLOCK))
    return Packed(f"sha256:{out.digest}", out.written, unpacked, len(given))


def digest_of(archive: Path) -> str:
    """Return the digest of an archive. Raises OSError."""
    with archive.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def unpack(archive: Path, digest: str, folder: Path) -> None:
    """Replace a folder by the content of an archive, if the archive has this digest.

    The files appear in the folder all together. Raises CodeError for an archive that can't be used; OSError where the
    folder can't be written.
    """
    size = archive.stat().st_size
    if size > PACKED_BYTES:
        raise CodeTooLarge(f"the archive has {size:,} bytes, and the maximum is {PACKED_BYTES:,}")
    if (found := digest_of(archive)) != digest:
        raise CodeError(f"the archive has the digest {found}, and the job asks for {digest}")
    new = folder.with_name(f".{folder.name}-new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True, mode=0o755)
    try:
        with gzip.open(archive, "rb") as stream:
            _unpack_to(new, stream)  # type: ignore[arg-type]  # a GzipFile for reading is a BinaryIO
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        shutil.rmtree(new, ignore_errors=True)
        raise CodeError(f"the archive is no complete tar.gz: {error}") from error
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    for where, _, _ in os.walk(new):
        Path(where).chmod(0o755)  # the umask may have removed permissions
    if folder.exists():
        shutil.rmtree(folder)
    new.rename(folder)


def _add(stream: BinaryIO | gzip.GzipFile, name: str, path: Path, room: int) -> int:
    """Write one entry; return the bytes of its content. room: bytes that the content may have."""
    info = tarfile.TarInfo(name)
    if path.is_dir():
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        stream.write(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict"))
        return 0
    # Without O_NONBLOCK, the opening of a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise CodeError(f"{shown(name)} is neither a file nor a folder")
        if before.st_size > room:
            total = UNPACKED_BYTES - room + before.st_size
            raise CodeTooLarge(
                f"the files up to {shown(name)} have {total:,} bytes, and the maximum is {UNPACKED_BYTES:,}"
            )
        info.size, info.mode = before.st_size, 0o755 if before.st_mode & 0o100 else 0o644
        stream.write(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict"))
        left = info.size
        while left and (content := file.read(min(left, _CHUNK))):
            stream.write(content)
            left -= len(content)
        after = os.fstat(descriptor)
        if left or (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise CodeError(f"{shown(name)} changed while it was packed: try again")
    stream.write(bytes(-info.size % _BLOCK))
    return info.size


def _unpack_to(folder: Path, stream: BinaryIO) -> None:
    """Write the entries of a tar to an empty folder."""
    seen: set[tuple[str, ...]] = set()
    unpacked = 0
    for info in _headers(stream):
        parts = _parts(info.name)
        if not parts:
            continue
        if parts in seen:
            raise CodeError(f"two entries have the name {shown(info.name)}")
        seen.add(parts)
        unpacked += info.size
        if unpacked > UNPACKED_BYTES:
            raise CodeTooLarge(
                f"the files have at least {unpacked:,} bytes, and the maximum is {UNPACKED_BYTES:,}"
            )
        path = folder.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if info.isdir():
                path.mkdir(exist_ok=True)
            else:
                _write(path, stream, info)
        except (FileExistsError, NotADirectoryError):
            raise CodeError(f"{shown(info.name)} is a file and a folder at the same time") from None


def _headers(stream: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """Yield the files and folders of a tar. The caller reads the content of each."""
    long_name, count = None, 0
    while True:
        block = _exactly(stream, _BLOCK)
        if not any(block):
            _check_end(stream)
            return
        try:
            # After a long name, the header has the first 100 bytes of the name, which may end inside a character.
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict" if long_name is None else "replace")
        except UnicodeDecodeError:
            raise CodeError("the name of an entry is not UTF-8") from None
        except tarfile.HeaderError as error:
            raise CodeError(f"the archive is no tar: {error}") from None
        if info.type == tarfile.GNUTYPE_LONGNAME:
            long_name = _long_name(stream, info.size)
            continue
        info.name, long_name = long_name or info.name, None
        count += 1
        _check_count(count)
        if info.type not in (*_FILE_TYPES, tarfile.DIRTYPE):
            if kind := _KINDS.get(info.type):
                raise CodeError(f"{shown(info.name)} is {kind}: only files and folders are allowed")
            raise CodeError(
                f"{shown(info.name)} is an entry of type {info.type!r}, which is neither a file nor a folder: "
                "pack the archive with tar --format=gnu"
            )
        if info.size < 0 or (info.isdir() and info.size):
            kind = "folder" if info.isdir() else "file"
            raise CodeError(f"the header of the {kind} {shown(info.name)} has the invalid size {info.size:,}")
        yield info


def _long_name(stream: BinaryIO, size: int) -> str:
    if not 0 < size <= _NAME_BYTES + 1:
        raise CodeError(f"the name of an entry has {size:,} bytes, and the maximum is {_NAME_BYTES:,}")
    name = _exactly(stream, size + -size % _BLOCK)[:size].rstrip(b"\0")
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise CodeError(f"the name of an entry is not UTF-8: {name!r}") from None


def _write(path: Path, stream: BinaryIO, info: tarfile.TarInfo) -> None:
    mode = 0o755 if info.mode & 0o100 else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
        os.fchmod(descriptor, mode)
        left = info.size
        while left:
            content = _exactly(stream, min(left, _CHUNK))
            file.write(content)
            left -= len(content)
    _exactly(stream, -info.size % _BLOCK)


def _check_end(stream: BinaryIO) -> None:
    """Accept the zeros by which tar fills its last record. Raises CodeError for anything else."""
    if any(stream.read(_CHUNK)) or stream.read(1):
        raise CodeError("the archive has more bytes after its end-of-archive entry")


def _exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    while len(content) < size:
        more = stream.read(size - len(content))
        if not more:
            raise CodeError("the archive ends in the middle of an entry")
        content += more
    return content


def _parts(name: str) -> tuple[str, ...]:
    """Return the folders and the file in a name; nothing for the archive's own folder.

    Raises CodeError for a name that leaves this folder.
    """
    if name.startswith("/"):
        raise CodeError(f"{shown(name)} is an absolute path: a name must be relative to the folder")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise CodeError(f"{shown(name)} leads out of the folder")
    try:
        too_long = len(name.encode()) > _NAME_BYTES or any(len(part.encode()) > 255 for part in parts)
    except UnicodeEncodeError:
        raise CodeError(f"the name {shown(name)} is not UTF-8") from None
    if too_long:
        raise CodeError(
            f"the name {shown(name)} is too long: a path has at most {_NAME_BYTES:,} bytes, and each part of it 255"
        )
    if "\0" in name:
        raise CodeError(f"the name {shown(name)} contains a NUL byte")
    return parts


def shown(name: str) -> str:
    """Return a name for a message: quoted, and cut off where it is long."""
    return ascii(name if len(name) <= 200 else f"{name[:200]}…")


def _check_count(count: int) -> None:
    if count > MOST_ENTRIES:
        raise CodeTooLarge(
            f"there are at least {count:,} files and folders, and the maximum is {MOST_ENTRIES:,}"
        )


class _Hashing:
    """Passes bytes on to a file, hashes and counts them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.written = 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def write(self, content: bytes) -> int:
        self.written += len(content)
        if self.written > PACKED_BYTES:
            raise CodeTooLarge(
                f"the archive has at least {self.written:,} bytes, and the maximum is {PACKED_BYTES:,}"
            )
        self._hash.update(content)
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()
