"""WebDataset's shards: tar archives in which the files of one example follow each other and share a name.

`n03/0001.jpg` and `n03/0001.cls` are an example: the name up to the first dot of its last part is common. The label
is a whole number in decimal digits in `.cls`. Files with other endings are passed over.

Python's tarfile needs 0.1 ms for a member. This reader knows regular files and directories in the forms of POSIX
(ustar and pax) and GNU, and refuses links, devices and sparse files.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.formats.format import Cut, Example, cuts
from dtj_trainer.data.index import MAX_CLASSES, MAX_EXAMPLE_BYTES, MAX_NAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PICTURES = frozenset({"jpg", "jpeg", "png", "webp", "bmp", "gif", "ppm", "pgm", "tif", "tiff"})
"""Endings of the names of picture files."""
LABELS = frozenset({"cls", "class"})
_BLOCK = 512
_MAX_PAX_BYTES = 1 << 16
_MAX_MEMBERS = 100
"""Limit of the files of one example."""
_EXAMPLE_FILE = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]*)", re.DOTALL)
_PAX = re.compile(rb"(\d{1,6}) ([^=]+)=")
_REGULAR, _PASSED_OVER = (b"0", b"\0", b"7"), (b"5", b"g")


class _Member(NamedTuple):
    """A file. `start`, `content` and `end` are the offsets of its first header, its content and what follows."""

    name: str
    start: int
    content: int
    size: int
    end: int


class Tar:
    """See Format."""

    name = "tar"

    def blocks(self, shard: BinaryIO, size: int, *, where: str) -> Iterator[Cut]:
        """See Format. Only the headers are read."""

        def read(offset: int, length: int) -> bytes:
            shard.seek(offset)
            return shard.read(length)

        def ends() -> Iterator[int]:
            last = 0
            for number, (_, members) in enumerate(_examples(_members(read, size, where), where)):
                if number:
                    yield members[0].start
                last = members[-1].end
            if last:
                yield last

        return cuts(ends(), where=where)

    def examples(self, content: bytes | memoryview, *, where: str) -> Iterator[Example]:
        """See Format. Pictures are parts of `content`: a copy would cost as much time as the rest."""
        view = memoryview(content)

        def read(offset: int, length: int) -> bytes:
            return bytes(view[offset : offset + length])

        members = _members(read, len(content), where, whole=False)
        for number, (key, files) in enumerate(_examples(members, where)):
            yield _example(view, files, f"{where}, example {number} ({key})")


def _examples(members: Iterator[_Member], where: str) -> Iterator[tuple[str, list[_Member]]]:
    """Yield the common name and the files of each example."""
    key, files = "", list[_Member]()
    for member in members:
        match = _EXAMPLE_FILE.fullmatch(member.name)
        if match is None:
            continue
        if files and match[1] != key:
            yield key, files
            files = []
        key = match[1]
        files.append(member)
        if len(files) > _MAX_MEMBERS:
            raise DataCorrupt(f"{where}: {key} has more than {_MAX_MEMBERS} files")
    if files:
        yield key, files


def _example(view: memoryview, files: list[_Member], where: str) -> Example:
    found: dict[str, memoryview] = {}
    for file in files:
        ending = file.name.rsplit("/", 1)[-1].split(".", 1)[1].lower()
        kind = "picture" if ending in PICTURES else "label" if ending in LABELS else ""
        if kind in found:
            raise DataCorrupt(f"{where} has two {kind}s")
        if kind:
            found[kind] = view[file.content : file.content + file.size]
    if "picture" not in found or "label" not in found:
        names = ", ".join(file.name for file in files)
        raise DataCorrupt(
            f"{where} needs a picture (.jpg, .png, .webp, .bmp, .gif, .ppm, .tif) and a label (.cls); there is "
            f"{names}"
        )
    label = bytes(found["label"]).strip()
    if not label.isdigit() or len(label) > 9 or int(label) >= MAX_CLASSES:
        raise DataCorrupt(f"{where}: its label is {label[:20]!r}, where a whole number from 0 on is needed")
    return Example(found["picture"], int(label))


def _members(
    read: Callable[[int, int], bytes], size: int, where: str, *, whole: bool = True
) -> Iterator[_Member]:
    """Yield the files of an archive, or of a part of one (not `whole`) that begins at a header."""
    offset, start, name, length = 0, 0, "", -1
    while offset < size:
        header = read(offset, _BLOCK)
        if header == bytes(_BLOCK):
            return
        kind, found, own = _header(header, f"{where}, byte {offset}")
        extended = kind in (b"x", b"L", b"K")
        amount = own if extended or length < 0 else length
        content, end = offset + _BLOCK, offset + _BLOCK + -(-amount // _BLOCK) * _BLOCK
        if end > size:
            raise DataCorrupt(f"{where} is cut off: byte {offset} begins a file of {amount} bytes")
        if extended:
            if amount > _MAX_PAX_BYTES:
                what = "pax header" if kind == b"x" else "name"
                raise DataCorrupt(
                    f"{where}, byte {offset}: a {what} of {amount} bytes; the limit is {_MAX_PAX_BYTES}"
                )
            if kind == b"L":
                name = read(content, amount).rstrip(b"\0").decode("utf-8", "replace")
            elif kind == b"x":
                name, length = _pax(read(content, amount), name, length, f"{where}, byte {offset}")
        else:
            if kind in _REGULAR:
                _check_limits(name or found, amount, f"{where}, byte {offset}")
                yield _Member(name or found, start, content, amount, end)
            elif kind not in _PASSED_OVER:
                raise DataCorrupt(
                    f"{where}, byte {offset}: {name or found} is no file but a link, a device or the like "
                    f"(type {kind!r})"
                )
            start, name, length = end, "", -1
        offset = end
    if whole:
        raise DataCorrupt(f"{where} is cut off: the two empty blocks at an archive's end are missing")


def _check_limits(name: str, size: int, where: str) -> None:
    if len(name) > MAX_NAME_BYTES:
        raise DataCorrupt(f"{where}: a name of {len(name)} characters; the limit is {MAX_NAME_BYTES}")
    if size > MAX_EXAMPLE_BYTES:
        raise DataCorrupt(f"{where}: {name} has {size} bytes; the limit is {MAX_EXAMPLE_BYTES}")


def _header(header: bytes, where: str) -> tuple[bytes, str, int]:
    """Return type, name and size in bytes of a header. Raises DataCorrupt."""
    if len(header) < _BLOCK:
        raise DataCorrupt(f"{where}: the header is cut off")
    recorded = _number(header[148:156])
    # The checksum is the sum of the header's bytes, with its own field as 8 spaces. The low half of Adler-32 is that
    # sum plus 1, and fast to compute.
    summed = (zlib.adler32(header) & 0xFFFF) - 1 - sum(header[148:156]) + 8 * 0x20
    if recorded is None or (summed - recorded) % 65521:
        raise DataCorrupt(f"{where}: no header of a tar archive")
    size = _number(header[124:136])
    if size is None:
        raise DataCorrupt(f"{where}: the header has no valid size of the file")
    name = header[:100].split(b"\0", 1)[0]
    # Bytes 345 to 500 have the beginning of the name in POSIX archives only: GNU's archives have times there.
    if header[257:263] == b"ustar\0" and header[345]:
        name = header[345:500].split(b"\0", 1)[0] + b"/" + name
    return header[156:157], name.decode("utf-8", "replace"), size


def _number(field: bytes) -> int | None:
    """Read an octal number, or GNU's binary number of large files. Return None for neither."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip()
    return int(digits, 8) if digits and not digits.strip(b"01234567") else None


def _pax(records: bytes, name: str, size: int, where: str) -> tuple[str, int]:
    """Return name and size from the records of a pax header, `length key=value`; the given ones where no record has
    them.
    """
    at = 0
    while at < len(records):
        match = _PAX.match(records, at)
        end = at + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(records) or records[end - 1] != 0x0A:
            raise DataCorrupt(f"{where}: a damaged pax header")
        value = records[match.end() : end - 1]
        if match[2] == b"path":
            name = value.decode("utf-8", "replace")
        elif match[2] == b"size":
            if not value.isdigit() or len(value) > 20:
                raise DataCorrupt(f"{where}: the pax header has the size {value[:20]!r}, which is no number")
            size = int(value)
        elif match[2].startswith(b"GNU.sparse"):
            raise DataCorrupt(f"{where}: a sparse file, which dtj does not read")
        at = end
    return name, size
