"""Damaged and hostile files: never anything but a DataError, in bounded memory.

* random changes to a valid file of each format
* pictures of too many pixels, pickles that call functions, records and archives beyond their limits
* names that lead out of a folder
"""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace

import google_crc32c
import numpy as np
import pytest
import simplejpeg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile
from tests.trainer.idx_files import idx_bytes
from tests.trainer.picture_formats import (
    cifar_binary,
    cifar_python,
    encoded,
    file_of,
    pieces,
    python2_pickle,
    slim_example,
)

from dtj_trainer.data.errors import DataCorrupt, DataError, DataTooLarge
from dtj_trainer.data.formats import FORMATS, images, tfrecord
from dtj_trainer.data.formats.cifar import read_examples, read_names
from dtj_trainer.data.formats.idx import read_idx
from dtj_trainer.data.formats.images import PictureForm, Stack, pixels_of
from dtj_trainer.data.index import MAX_EXAMPLE_BYTES, Block, DataIndex, Shard, SplitIndex

PIXELS, LABELS = pieces(4, 32)
INDEX = DataIndex(
    "tar",
    ("a", "b"),
    {"train": SplitIndex((Shard("x/0.tar", 5000, '"e"', "0" * 64),), (Block(0, 0, 5000, 4, 7),))},
    (0.5,),
    (0.25,),
)


def masked(content: bytes) -> bytes:
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(content: bytes) -> bytes:
    """One record of a TFRecord file with right checksums, so that damage reaches what is behind them."""
    length = struct.pack("<Q", len(content))
    return length + masked(length) + content + masked(content)


def tf_example(features: dict[str, bytes | int]) -> bytes:
    example = tfrecord._Example()
    for key, value in features.items():
        values = example.features.feature[key]
        (values.int64_list if isinstance(value, int) else values.bytes_list).value.append(value)
    return example.SerializeToString()


def read_shard(name: str) -> Callable[[bytes], object]:
    def read(content: bytes) -> None:
        for cut in FORMATS[name].blocks(io.BytesIO(content), len(content), where="shard"):
            block = memoryview(content)[cut.offset : cut.offset + cut.length]
            for picture, _ in FORMATS[name].examples(block, where="shard"):
                pixels_of(picture, PictureForm(size=16), where="shard")

    return read


def read_picture(content: bytes) -> np.ndarray:
    return pixels_of(content, PictureForm(size=16), where="picture")


def read_python(content: bytes) -> object:
    return read_examples(content, "labels", 10, where="data_batch_1")


READERS: dict[str, Callable[[bytes], object]] = {
    "idx": lambda content: read_idx(content, where="idx"),
    "idx.gz": lambda content: read_idx(content, where="idx"),
    "cifar10": read_shard("cifar10"),
    "python": read_python,
    "python4": read_python,
    "meta": lambda content: read_names(content, "label_names", where="meta"),
    "tar": read_shard("tar"),
    "tar headers": lambda content: read_shard("tar")(with_checksums(content)),
    "tfrecord": read_shard("tfrecord"),
    "example": lambda content: read_shard("tfrecord")(record(content)),
    "index": DataIndex.from_json,
    **dict.fromkeys(("png", "jpeg", "webp", "gif", "bmp", "ppm"), read_picture),
}


@cache
def valid(name: str) -> bytes:
    pictures = {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP", "gif": "GIF", "bmp": "BMP", "ppm": "PPM"}
    if name in pictures:
        return file_of(PIXELS[0], pictures[name])
    idx = idx_bytes(PIXELS[:, 0])
    example = tf_example(slim_example(file_of(PIXELS[0]), 3))
    made: dict[str, Callable[[], bytes]] = {
        "idx": lambda: idx,
        "idx.gz": lambda: gzip.compress(idx),
        "cifar10": lambda: cifar_binary(PIXELS, LABELS),
        "python": lambda: python2_pickle(cifar_python(PIXELS, LABELS)),
        "python4": lambda: pickle.dumps(cifar_python(PIXELS, LABELS), 4),
        "meta": lambda: python2_pickle({b"label_names": [b"airplane", b"cat"]}),
        "tar": tar_of_pictures,
        "tar headers": tar_of_pictures,
        "tfrecord": lambda: record(example) * 3,
        "example": lambda: example,
        "index": INDEX.to_json,
    }
    return made[name]()


def with_checksums(content: bytes) -> bytes:
    """Write the checksums of an archive's headers, so that damage reaches what is behind them."""
    changed = bytearray(content)
    for at in range(0, len(content) - 511, 512):
        if content[at + 257 : at + 262] == b"ustar":
            changed[at + 148 : at + 156] = b" " * 8
            changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + 512])
    return bytes(changed)


def tar_of_pictures() -> bytes:
    """An archive with what webdataset writes, GNU's long names and a folder."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("README"))
        for number, (picture, label) in enumerate(encoded(PIXELS[:2], LABELS[:2])):
            for ending, content in (("png", picture), ("cls", b"%d" % label)):
                info = tarfile.TarInfo(f"{'n' * 120 * number}{number}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return written.getvalue()


@st.composite
def damage(draw: st.DrawFn, content: bytes) -> bytes:
    """Overwrite, cut, insert and repeat at a few places."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(changed)))
        match draw(st.sampled_from(("byte", "byte", "word", "cut", "drop", "insert", "repeat"))):
            case "byte":
                changed[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "word":
                changed[at : at + 4] = draw(st.sampled_from((b"\xff" * 4, b"\x7f" + b"\xff" * 3, bytes(4))))
            case "cut":
                del changed[at:]
            case "drop":
                del changed[at : at + draw(st.integers(1, 20))]
            case "insert":
                changed[at:at] = draw(st.binary(min_size=1, max_size=9))
            case "repeat":
                changed[at:at] = changed[: draw(st.integers(0, 600))]
    return bytes(changed)


def by_message(value: object) -> str:
    """Return the part of a test's name: protobuf writes the same example in different orders of bytes."""
    return value if isinstance(value, str) else "content"


@pytest.mark.parametrize("name", READERS)
def test_damage_is_a_data_error_in_little_memory(name: str) -> None:
    READERS[name](valid(name))

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(damage(valid(name)))
    def read(content: bytes) -> None:
        message = "an empty message fails"
        tracemalloc.start()
        try:
            READERS[name](content)
        except DataError as error:
            message = str(error)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 10 < len(message) < 1000
        assert peak < 40_000_000

    read()


def huge(kind: str) -> bytes:
    """A small file whose header says 20,000 x 20,000 pixels."""
    small = file_of(PIXELS[0], kind)
    if kind == "PNG":
        header = b"IHDR" + struct.pack(">II", 20_000, 20_000) + small[24:29]
        return small[:12] + header + struct.pack(">I", zlib.crc32(header)) + small[33:]
    if kind == "JPEG":
        at = small.index(b"\xff\xc0") + 5
        return small[:at] + struct.pack(">HH", 20_000, 20_000) + small[at + 4 :]
    if kind == "GIF":
        return small[:6] + struct.pack("<HH", 20_000, 20_000) + small[10:]
    if kind == "BMP":
        return small[:18] + struct.pack("<ii", 20_000, 20_000) + small[26:]
    return small.replace(b"32 32", b"20000 20000", 1)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "PPM"])
def test_too_many_pixels_are_refused_before_they_are_decoded(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    load = ImageFile.ImageFile.load

    def decode(picture: ImageFile.ImageFile) -> object:
        decoded.append(picture.size)
        return load(picture)

    def decode_jpeg(content: bytes, colours: str) -> np.ndarray:
        found = simplejpeg.decode_jpeg(content, colours)
        decoded.append(found.shape[:2])
        return found

    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    header = simplejpeg.decode_jpeg_header
    monkeypatch.setattr(
        images, "simplejpeg", SimpleNamespace(decode_jpeg=decode_jpeg, decode_jpeg_header=header)
    )
    pixels_of(file_of(PIXELS[0], kind), PictureForm(), where="x")
    with pytest.raises(DataCorrupt, match=r"^x has (?=.*400000000 pixels).* a picture has at most 50000000"):
        pixels_of(huge(kind), PictureForm(), where="x")
    assert set(decoded) == {(32, 32)}


def test_what_is_no_picture() -> None:
    for content, message in (
        (b"", "x is no picture of JPEG, PNG, WEBP, BMP, GIF, PPM, TIFF: it begins with nothing"),
        (b"<html>", "x is no picture of JPEG, PNG, WEBP, BMP, GIF, PPM, TIFF: it begins with 3c 68 74 6d"),
        (file_of(PIXELS[0])[:-200], "x: the picture is damaged: "),
        (bytes(MAX_EXAMPLE_BYTES + 1), f"x: {MAX_EXAMPLE_BYTES + 1} bytes; a picture has at most"),
    ):
        with pytest.raises(DataCorrupt) as caught:
            pixels_of(content, PictureForm(), where="x")
        assert str(caught.value).startswith(message)
    written = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(written, "PNG")
    with pytest.raises(DataCorrupt, match="x has more than 8 bits a channel"):
        pixels_of(written.getvalue(), PictureForm(), where="x")


def test_what_does_not_fit_memory() -> None:
    with pytest.raises(
        DataTooLarge, match=r"2000000 pictures such as x: 6144000000 bytes of pixels, and at most"
    ):
        Stack(2_000_000).add(PIXELS[0], where="x")
    assert 2_000_000 * PIXELS[0].size > images.MAX_MEMORY_BYTES


class Calls:
    def __init__(self, function: object, *arguments: object) -> None:
        self.__reduced = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.__reduced


def hostile_pickles() -> Iterator[tuple[bytes, str]]:
    yield pickle.dumps({b"data": Calls(print, "called")}, 2), r"it asks for (__builtin__|builtins)\.print"
    yield pickle.dumps({b"data": Calls(eval, "1/0")}, 4), r"it asks for builtins\.eval"
    yield pickle.dumps({b"data": Calls(np.load, "x")}, 4), r"it asks for numpy\.load"
    yield pickle.dumps({b"labels": [], b"data": np.arange(3, dtype=object)}, 2), "data is no array of bytes"
    yield (
        pickle.dumps({b"labels": [], b"data": PIXELS.reshape(4, -1).astype(float)}, 2),
        "data is no array of bytes",
    )
    yield (
        pickle.dumps({b"labels": [], b"data": PIXELS[0].reshape(3, -1)}, 2),
        "bytes with 3072 columns",
    )
    yield pickle.dumps([1, 2], 2), "holds no dictionary but list"
    yield pickle.dumps({1, 2}, 4), "it has the opcode EMPTY_SET"
    yield b"\x80\x02}r\xff\xff\xff\x7f.", "its memo has the index 2147483647"
    yield b"\x80\x04\x96\xff\xff\xff\xff\x00\x00\x00\x00.", "is no pickle of arrays and text"
    yield python2_pickle({b"data": b"x"}), "has no labels; there is data"
    yield (
        python2_pickle(cifar_python(PIXELS, LABELS + 9)),
        "example 1: label 10, where labels run from 0 to 9",
    )
    yield python2_pickle(cifar_python(PIXELS, LABELS[:3])), "labels is no list of 4 whole numbers"
    yield b"", "is no pickle of arrays and text"


@pytest.mark.parametrize(("content", "message"), list(hostile_pickles()), ids=by_message)
def test_pickles_of_other_than_arrays_and_text(
    content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataCorrupt, match=f"data_batch_1.*{message}"):
        read_python(content)
    assert capsys.readouterr().out == ""


def tar_with(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, "/etc/passwd"
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tar_with("0.png", kind=tarfile.SYMTYPE), "0.png is no file but a link, a device or the like"),
        (tar_with("0.png", 1 << 40), "shard is cut off: byte 0 begins a file of 1099511627776 bytes"),
        (
            tar_with("0.png", MAX_EXAMPLE_BYTES + 1) + bytes(MAX_EXAMPLE_BYTES + 512),
            "0.png has 33554433 bytes",
        ),
        (tar_with("x", 70_000, b"L") + bytes(70_144), "a name of 70000 bytes"),
        (tar_with("0.png"), "cut off: the two empty blocks at an archive's end are missing"),
        (
            tar_with("0.png") + bytes(1024),
            r"example 0 \(0\) needs a picture .* and a label \(.cls\); there is 0.png",
        ),
        (tar_with("0.png") + tar_with("0.jpg") + bytes(1024), r"example 0 \(0\) has two pictures"),
        (
            tar_with("0.png") + tar_with("0.cls") + bytes(1024),
            "its label is b'', where a whole number from 0 on",
        ),
        (b"".join(tar_with(f"0.{n}") for n in range(200)) + bytes(1024), "0 has more than 100 files"),
        (b"PK\x03\x04" + bytes(600), "shard, byte 0: no header of a tar archive"),
    ],
    ids=by_message,
)
def test_archives_beyond_what_shards_hold(content: bytes, message: str) -> None:
    with pytest.raises(DataCorrupt, match=message):
        READERS["tar"](content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (record(b"x")[:-1], "example 0 is cut off: 16 of its 17 bytes are there"),
        (record(b"x")[:5], "example 0 is cut off within its length"),
        (record(b"x") * 2 + gzip.compress(b"x" * 99), "example 2: the CRC of its length differs"),
        (record(b"x")[:12] + b"y" + record(b"x")[13:], "example 0 is damaged: its CRC differs"),
        (
            struct.pack("<Q", 1 << 40) + masked(struct.pack("<Q", 1 << 40)),
            "1099511627776 bytes; the limit is",
        ),
        (record(b"x"), "example 0 is no tf.train.Example"),
        (record(b""), "example 0 has no feature image; there is nothing"),
        (record(tf_example({"image": b"x", "label": -1})), "label -1, where labels run from 0"),
        (record(tf_example({"image": b"x", "label": b"7"})), "label has 0 values in its int64_list"),
        (record(tf_example(slim_example(b"xyz", 1, b"raw"))), "3 bytes are no raw picture of 32 x 32 pixels"),
    ],
    ids=by_message,
)
def test_records_beyond_what_examples_hold(content: bytes, message: str) -> None:
    with pytest.raises(DataCorrupt, match=f"shard.*{message}"):
        READERS["tfrecord"](content)


def test_cifar_that_is_cut_off() -> None:
    with pytest.raises(DataCorrupt, match="shard has 12291 bytes, 3072 more than 3 records of 3073 bytes"):
        READERS["cifar10"](cifar_binary(PIXELS, LABELS)[:-1])
    with pytest.raises(DataCorrupt, match="example 3: label 10, where labels run from 0 to 9"):
        READERS["cifar10"](cifar_binary(PIXELS, LABELS + 7))
