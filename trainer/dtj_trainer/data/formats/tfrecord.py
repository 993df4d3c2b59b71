"""TFRecord files of tf.train.Example, with CIFAR-10's features as TensorFlow's models publish them.

A record: its length (uint64, little-endian), the masked CRC-32C of these 8 bytes, the content, the masked CRC-32C of
the content. Features: `image/encoded` (a picture file; pixels in rows of RGB where `image/format` is `raw`) and
`image/class/label`; `image` and `label` (a picture file, or the 3,072 bytes of CIFAR-10's own order).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, BinaryIO

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.formats.cifar import PIXELS, SHAPE
from dtj_trainer.data.formats.format import Cut, Example, cuts
from dtj_trainer.data.index import MAX_CLASSES, MAX_EXAMPLE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HEADER, _FOOTER = 12, 4
_PICTURE_FILES = (b"\xff\xd8\xff", b"\x89PNG")


class TFRecord:
    """See Format."""

    name = "tfrecord"

    def blocks(self, shard: BinaryIO, size: int, *, where: str) -> Iterator[Cut]:
        """See Format. Only the lengths are read."""

        def read(offset: int, length: int) -> bytes:
            shard.seek(offset)
            return shard.read(length)

        return cuts((end for _, end in _records(read, size, where)), where=where)

    def examples(self, content: bytes | memoryview, *, where: str) -> Iterator[Example]:
        """See Format. The CRC of each record is checked."""

        def read(offset: int, length: int) -> bytes:
            return bytes(content[offset : offset + length])

        for number, (start, end) in enumerate(_records(read, len(content), where)):
            name = f"{where}, example {number}"
            record = read(start + _HEADER, end - start - _HEADER - _FOOTER)
            if _masked(record) != int.from_bytes(read(end - _FOOTER, _FOOTER), "little"):
                raise DataCorrupt(f"{name} is damaged: its CRC differs")
            yield _example(record, name)


def _records(read: Callable[[int, int], bytes], size: int, where: str) -> Iterator[tuple[int, int]]:
    """Yield the offsets in bytes of each record's start and end."""
    start, number = 0, 0
    while start < size:
        name = f"{where}, example {number}"
        header = read(start, _HEADER)
        if len(header) < _HEADER:
            raise DataCorrupt(f"{name} is cut off within its length")
        length, crc = struct.unpack("<QI", header)
        if _masked(header[:8]) != crc:
            raise DataCorrupt(
                f"{name}: the CRC of its length differs; the file is damaged, compressed, or no TFRecord file"
            )
        if length > MAX_EXAMPLE_BYTES:
            raise DataCorrupt(f"{name}: {length} bytes; the limit is {MAX_EXAMPLE_BYTES}")
        end = start + _HEADER + length + _FOOTER
        if end > size:
            raise DataCorrupt(f"{name} is cut off: {size - start} of its {end - start} bytes are there")
        yield start, end
        start, number = end, number + 1


def _masked(content: bytes) -> int:
    """Return TFRecord's form of the CRC-32C: rotated right by 15 bits, plus a constant."""
    crc: int = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _message() -> Any:
    """Make the class of tf.train.Example (tensorflow/core/example/example.proto) in a pool of its own.

    TensorFlow, in the same process, registers its own class under the same name in the default pool.
    """
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, str]) -> descriptor_pb2.DescriptorProto:
        made = file.message_type.add(name=name)
        for number, (key, kind, label, type_name) in enumerate(fields, 1):
            made.field.add(name=key, number=number, type=kind, label=label, type_name=type_name or None)
        return made

    one, many, nested = field.LABEL_OPTIONAL, field.LABEL_REPEATED, field.TYPE_MESSAGE
    message("BytesList", ("value", field.TYPE_BYTES, many, ""))
    message("FloatList", ("value", field.TYPE_FLOAT, many, ""))
    message("Int64List", ("value", field.TYPE_INT64, many, ""))
    lists = ("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")
    message("Feature", *((key, nested, one, f".tensorflow.{name}") for key, name in lists))
    features = message("Features", ("feature", nested, many, ".tensorflow.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=nested, label=one, type_name=".tensorflow.Feature")
    message("Example", ("features", nested, one, ".tensorflow.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


_Example = _message()


def _example(record: bytes, where: str) -> Example:
    try:
        features = _Example.FromString(record).features.feature
    except DecodeError as error:
        raise DataCorrupt(f"{where} is no tf.train.Example") from error
    prefix = "image/" if "image/encoded" in features else ""
    picture = _one(features, "image/encoded" if prefix else "image", "bytes_list", where)
    label = _one(features, "image/class/label" if prefix else "label", "int64_list", where)
    if not 0 <= label < MAX_CLASSES:
        raise DataCorrupt(f"{where}: label {label}, where labels run from 0 to {MAX_CLASSES - 1}")
    if prefix and "image/format" in features:
        if _one(features, "image/format", "bytes_list", where).lower() == b"raw":
            return Example(_raw(picture, features, where), label)
        return Example(picture, label)
    if len(picture) == PIXELS and not picture.startswith(_PICTURE_FILES):
        return Example(np.frombuffer(picture, np.uint8).reshape(SHAPE), label)
    return Example(picture, label)


def _one(features: Any, key: str, kind: str, where: str) -> Any:
    """Return the only value of a feature."""
    if key not in features:
        raise DataCorrupt(
            f"{where} has no feature {key}; there is {', '.join(sorted(features)[:8])[:200] or 'nothing'}"
        )
    values = getattr(features[key], kind).value
    if len(values) != 1:
        raise DataCorrupt(
            f"{where}: the feature {key} has {len(values)} values in its {kind}, where one is needed"
        )
    return values[0]


def _raw(content: bytes, features: Any, where: str) -> np.ndarray:
    height, width = (_one(features, f"image/{side}", "int64_list", where) for side in ("height", "width"))
    channels, rest = divmod(len(content), height * width) if height > 0 and width > 0 else (0, 0)
    if rest or channels not in (1, 3):
        raise DataCorrupt(f"{where}: {len(content)} bytes are no raw picture of {width} x {height} pixels")
    return np.frombuffer(content, np.uint8).reshape(height, width, channels).transpose(2, 0, 1)
