"""Data sets in each format, written by the format's own writer: Pillow, pickle, webdataset, TensorFlow."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import skimage.data
import webdataset
from PIL import Image
from tests import warm

Example = tuple[bytes, int]
"""A picture file and its label."""


def photographs() -> dict[str, np.ndarray]:
    """Colour photographs that scikit-image ships, (height, width, 3), by name."""
    names = ("astronaut", "chelsea", "coffee", "rocket")
    return {name: getattr(skimage.data, name)() for name in names}


def pieces(count: int, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Squares cut out of the photographs, uint8, (count, 3, size, size); the label is the photograph's number."""
    chance = np.random.default_rng(seed)
    sources = list(photographs().values())
    labels = np.arange(count) % len(sources)
    cut = []
    for label in labels:
        height, width, _ = sources[label].shape
        top, left = chance.integers(height - size), chance.integers(width - size)
        cut.append(sources[label][top : top + size, left : left + size].transpose(2, 0, 1))
    return np.stack(cut), labels


def file_of(pixels: np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    """Encode pixels, (channels, height, width), with Pillow."""
    written = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0).squeeze()).save(written, kind, **options)
    return written.getvalue()


def encoded(pixels: np.ndarray, labels: Sequence[int], kind: str = "PNG") -> list[Example]:
    return [(file_of(each, kind), int(label)) for each, label in zip(pixels, labels, strict=True)]


def write_tar(path: Path, examples: Iterable[Example], ending: str = "png") -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path)) as writer:
        for number, (picture, label) in enumerate(examples):
            writer.write({"__key__": f"{number:06d}", ending: picture, "cls": label})
    return path.read_bytes()


def write_folders(
    folder: Path, examples: Iterable[Example], classes: Sequence[str], ending: str = "png"
) -> None:
    for number, (picture, label) in enumerate(examples):
        path = folder / classes[label] / f"{number}_100.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)


def cifar_binary(pixels: np.ndarray, labels: Iterable[int], coarse: int | None = None) -> bytes:
    before = b"" if coarse is None else bytes([coarse])
    return b"".join(
        before + bytes([label]) + each.tobytes() for each, label in zip(pixels, labels, strict=True)
    )


class _Python2(pickle._Pickler):
    """Pickles as Python 2 did, which wrote CIFAR's files: bytes are its text, in the opcode BINSTRING."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, content: bytes) -> None:
        short = len(content) < 256
        self.write(b"U" + bytes([len(content)]) if short else b"T" + struct.pack("<i", len(content)))
        self.write(content)
        self.memoize(content)

    dispatch[bytes] = save_bytes

    def save_global(self, what: object, name: str | None = None) -> None:
        module = getattr(what, "__module__", "").replace("numpy._core", "numpy.core")
        self.write(f"c{module}\n{name or what.__name__}\n".encode())  # type: ignore[attr-defined]
        self.memoize(what)

    dispatch[type] = dispatch[type(len)] = dispatch[type(lambda: None)] = save_global


def python2_pickle(content: object) -> bytes:
    written = io.BytesIO()
    _Python2(written, protocol=2).dump(content)
    return written.getvalue()


def cifar_python(pixels: np.ndarray, labels: Iterable[int], key: bytes = b"labels") -> dict[bytes, object]:
    return {
        b"batch_label": b"training batch 1 of 5",
        key: [int(label) for label in labels],
        b"data": pixels.reshape(len(pixels), -1),
        b"filenames": [b"leptodactylus_pentadactylus_s_%06d.png" % number for number in range(len(pixels))],
    }


_TENSORFLOW = """
import pickle, sys
import tensorflow as tf
def feature(value):
    if isinstance(value, int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
for path, examples in pickle.load(sys.stdin.buffer).items():
    with tf.io.TFRecordWriter(path) as writer:
        for example in examples:
            features = {key: feature(value) for key, value in example.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
"""


def write_tfrecords(files: dict[Path, list[dict[str, bytes | int]]]) -> None:
    """Write files of examples with TensorFlow, in a process of its own."""
    content = pickle.dumps({str(path): examples for path, examples in files.items()})
    subprocess.run(
        [warm.python("tensorflow"), "-c", _TENSORFLOW], input=content, check=True, capture_output=True
    )


def slim_example(picture: bytes, label: int, kind: bytes = b"png", size: int = 32) -> dict[str, bytes | int]:
    """The features of CIFAR-10 as TensorFlow's models write them."""
    return {
        "image/encoded": picture,
        "image/format": kind,
        "image/class/label": label,
        "image/height": size,
        "image/width": size,
    }
