"""Writes shards, and describes them for an index: blocks, checksums, sums for mean and deviation of the pixels."""

from __future__ import annotations

import hashlib
import io
import json
import math
import tarfile
import zlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dtj_trainer.data.formats.images import pixels_of
from dtj_trainer.data.index import Block, Shard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from dtj_trainer.data.formats.format import Example, Format
    from dtj_trainer.data.formats.images import PictureForm

_ENDINGS = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG": "png",
    b"GIF8": "gif",
    b"RIFF": "webp",
    b"BM": "bmp",
    b"P5": "pgm",
    b"P6": "ppm",
    b"II*\0": "tif",
    b"MM\0*": "tif",
}
_JPEG_QUALITY = 95
_CHUNK_BYTES = 1 << 20


@dataclass
class PixelSums:
    """Sums over pixels, divided by 255, of each channel. `pixels` counts the pixels of one channel."""

    pixels: int = 0
    sums: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)

    def add(self, picture: np.ndarray) -> None:
        """Add a picture: uint8, (channels, height, width)."""
        counts = [np.bincount(channel.ravel(), minlength=256) for channel in picture]
        values = np.arange(256) / 255
        self.merge(
            PixelSums(
                picture[0].size,
                [float(count @ values) for count in counts],
                [float(count @ values**2) for count in counts],
            )
        )

    def merge(self, other: PixelSums) -> None:
        """Add the sums of other pictures."""
        self.pixels += other.pixels
        self.sums = _added(self.sums, other.sums)
        self.squares = _added(self.squares, other.squares)

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean of each channel."""
        return tuple(value / self.pixels for value in self.sums)

    @property
    def deviation(self) -> tuple[float, ...]:
        """The standard deviation of each channel."""
        means = zip(self.squares, self.mean, strict=True)
        return tuple(math.sqrt(max(square / self.pixels - mean**2, 0.0)) for square, mean in means)


def _added(some: list[float], more: list[float]) -> list[float]:
    return [one + other for one, other in zip(some, more, strict=True)] if some and more else some or more


@dataclass(frozen=True)
class ShardRecord:
    """What an index needs of one shard. The blocks' own `shard` is 0. `labels` is one more than the largest label."""

    shard: Shard
    blocks: tuple[Block, ...]
    sums: PixelSums
    labels: int
    skipped: tuple[str, ...] = ()
    """The faults of examples that were left out."""
    histograms: tuple[Mapping[int, int], ...] = ()
    """The number of examples by label, of each block; empty in records of releases that did not count."""

    def to_json(self) -> bytes:
        """Serialize the record."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(content: bytes) -> ShardRecord:
        """Read a record back. Raises ValueError, TypeError or KeyError for other content."""
        read = json.loads(content)
        return ShardRecord(
            Shard(**read["shard"]),
            tuple(Block(**block) for block in read["blocks"]),
            PixelSums(**read["sums"]),
            read["labels"],
            tuple(read["skipped"]),
            tuple({int(label): n for label, n in each.items()} for each in read.get("histograms", ())),
        )


def cut_shard(path: Path, format_: Format, *, where: str) -> tuple[str, tuple[Block, ...]]:
    """Return the SHA-256 of a shard, in hex digits, and its blocks. Raises DataCorrupt, which names `where`."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        cuts = list(format_.blocks(file, path.stat().st_size, where=where))
        blocks = []
        for cut in cuts:
            file.seek(cut.offset)
            blocks.append(Block(0, cut.offset, cut.length, cut.examples, zlib.crc32(file.read(cut.length))))
    return digest.hexdigest(), tuple(blocks)


def write_tar(path: Path, pictures: Iterable[tuple[str, bytes, int]], first: int) -> list[int]:
    """Write a WebDataset shard of picture files: ending, content, label. `first`: the number of the first example.

    The same pictures give the same bytes. Return the offset in bytes behind each example.
    """
    ends = []
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, (ending, content, label) in enumerate(pictures, first):
            for name, part in ((ending, content), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{number:09d}.{name}")
                member.size = len(part)
                archive.addfile(member, io.BytesIO(part))
            ends.append(archive.offset)
    return ends


def stored_file(example: Example) -> tuple[str, bytes]:
    """Return ending and content of a picture as a file. A picture file is not decoded, and pixels become a PNG."""
    if isinstance(example.picture, np.ndarray):
        return "png", _encoded(example.picture, None)
    content = bytes(example.picture)
    return next((ending for magic, ending in _ENDINGS.items() if content.startswith(magic)), "png"), content


def picture_file(example: Example, form: PictureForm, *, where: str) -> tuple[str, bytes, np.ndarray]:
    """Return ending, content and pixels of a picture as it is written to a shard.

    A picture file stays as it is, unless the form has a size. Pixels become a PNG, and resized photographs a JPEG.
    Raises DataCorrupt, which names `where`.
    """
    pixels = pixels_of(example.picture, form, where=where)
    if isinstance(example.picture, np.ndarray):
        return "png", _encoded(pixels, None), pixels
    ending, content = stored_file(example)
    if form.size is None:
        return ending, content, pixels
    ending, quality = ("jpg", _JPEG_QUALITY) if ending == "jpg" else ("png", None)
    return ending, _encoded(pixels, quality), pixels


def _encoded(pixels: np.ndarray, quality: int | None) -> bytes:
    """Return pixels as a PNG, or as a JPEG of this quality."""
    encoded = io.BytesIO()
    picture = Image.fromarray(pixels.transpose(1, 2, 0).squeeze())
    picture.save(encoded, "JPEG" if quality else "PNG", **({"quality": quality} if quality else {}))
    return encoded.getvalue()
