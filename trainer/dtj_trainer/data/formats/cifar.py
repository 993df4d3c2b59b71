"""CIFAR-10 and CIFAR-100 in their binary form (https://www.cs.toronto.edu/~kriz/cifar.html).

Records of a label (CIFAR-100: coarse label, fine label) and 3,072 bytes: the rows of red, of green and of blue.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from dtj_trainer.data.errors import DataCorrupt
from dtj_trainer.data.formats.format import Cut, Example
from dtj_trainer.data.index import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator


SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class BinaryCifar:
    """One of the two sets. See Format. `label_bytes`: bytes before the pixels, of which the last is the label."""

    name: str
    classes: int
    label_bytes: int

    def blocks(self, shard: BinaryIO, size: int, *, where: str) -> Iterator[Cut]:
        """See Format."""
        del shard  # The content is not needed: all records have the same length.
        count = self._count(size, where)
        length = self.label_bytes + PIXELS
        most = -(-BLOCK_BYTES // length)
        for start in range(0, count, most):
            examples = min(most, count - start)
            yield Cut(start * length, examples * length, examples)

    def examples(self, content: bytes | memoryview, *, where: str) -> Iterator[Example]:
        """See Format."""
        pixels, labels = self.arrays(content, where=where)
        yield from map(Example, pixels, labels.tolist())

    def arrays(self, content: bytes | memoryview, *, where: str) -> tuple[np.ndarray, np.ndarray]:
        """Return pixels, uint8, (examples, 3, 32, 32), and labels, int64, without a copy of the pixels."""
        count = self._count(len(content), where)
        records = np.frombuffer(content, np.uint8).reshape(count, self.label_bytes + PIXELS)
        labels = records[:, self.label_bytes - 1].astype(np.int64)
        check_labels(labels, self.classes, where=where)
        return records[:, self.label_bytes :].reshape(count, *SHAPE), labels

    def _count(self, size: int, where: str) -> int:
        count, rest = divmod(size, self.label_bytes + PIXELS)
        if rest or not count:
            raise DataCorrupt(
                f"{where} has {size} bytes, {rest} more than {count} records of {self.label_bytes + PIXELS} bytes: "
                f"it is cut off, or is not {self.name}'s binary form"
            )
        return count


CIFAR10 = BinaryCifar("cifar10", classes=10, label_bytes=1)
CIFAR100 = BinaryCifar("cifar100", classes=100, label_bytes=2)


def check_labels(labels: np.ndarray, classes: int, *, where: str) -> None:
    """Raise DataCorrupt for a label that is not in 0 to `classes` - 1. The message names the example's number."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise DataCorrupt(
            f"{where}, example {wrong[0]}: label {labels[wrong[0]]}, where labels run from 0 to {classes - 1}"
        )


# CIFAR-10 and CIFAR-100 in their Python form: a pickle of a dictionary with an array of rows, and lists of labels.
#
# A pickle can call any function. This reader knows the opcodes of data alone, and makes arrays and text of them.

MAX_BYTES = 512 << 20
"""Limit of a file. CIFAR-100's `train` has 155 MB."""
_OPCODES = re.compile(
    "PROTO|FRAME|STOP|MARK|NONE|NEWTRUE|NEWFALSE|BININT[12]?|LONG1|(SHORT_)?BIN(STRING|UNICODE|BYTES)|EMPTY_LIST|"
    "APPENDS?|EMPTY_DICT|SETITEMS?|EMPTY_TUPLE|TUPLE[123]?|(LONG_)?BIN(PUT|GET)|MEMOIZE|(STACK_)?GLOBAL|REDUCE|BUILD"
)
_MAX_MEMO = 1 << 22
"""Limit of the indexes in pickle's memo: Python's reader makes a table up to the highest index."""
_MOST_CHARACTERS = 300
"""The most characters of pickle's own message, which may repeat the whole file."""


class _Array:
    """Stands for numpy.ndarray while the pickle is read: no code of numpy runs on the content of the pickle."""

    def __init__(self, *arguments: object) -> None:
        del arguments  # `__setstate__` gets the shape with the content.
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Type:
    """Stands for numpy.dtype."""

    def __init__(self, code: object = None, *flags: object) -> None:
        del flags
        self.code = code

    def __setstate__(self, state: object) -> None:
        del state  # The state is the byte order, which single bytes do not have.


class _Latin1:
    """Stands for codecs.encode: Python 3 pickles bytes by the protocols of Python 2 as text and this call."""

    def __new__(cls, text: str, encoding: object) -> bytes:  # type: ignore[misc]
        del encoding
        return text.encode("latin-1")

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("bytes have no state")


_KNOWN = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _Latin1,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no array and no text")
        return known


def read_pickle(content: bytes, *, where: str) -> dict[str, Any]:
    """Read a pickled dictionary of arrays, text, numbers and lists. `_rows` makes the arrays.

    Raises DataCorrupt, which names `where`, for anything else.
    """
    if len(content) > MAX_BYTES:
        raise DataCorrupt(
            f"{where} has {len(content)} bytes; a file of CIFAR's Python form has at most {MAX_BYTES}"
        )
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if not _OPCODES.fullmatch(opcode.name):
                raise pickle.UnpicklingError(
                    f"it has the opcode {opcode.name}, which arrays and text don't need"
                )
            if opcode.name == "LONG_BINPUT" and not 0 <= (argument or 0) < _MAX_MEMO:
                raise pickle.UnpicklingError(
                    f"its memo has the index {argument}; the limit is {_MAX_MEMO - 1}"
                )
        found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # A damaged pickle can raise nearly any exception.
        raise DataCorrupt(
            f"{where} is no pickle of arrays and text: {str(error)[:_MOST_CHARACTERS]}"
        ) from error
    if not isinstance(found, dict):
        raise DataCorrupt(f"{where} holds no dictionary but {type(found).__name__}")
    return {
        key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in found.items()
    }


def read_examples(content: bytes, labels: str, classes: int, *, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels, uint8, (examples, 3, 32, 32), and the labels, int64, of a file such as `data_batch_1`.

    `labels`: the list's key, `labels` or `fine_labels`. Raises DataCorrupt, which names `where`.
    """
    read = read_pickle(content, where=where)
    for key in ("data", labels):
        if key not in read:
            raise DataCorrupt(
                f"{where} has no {key}; there is {', '.join(sorted(read)[:8])[:200] or 'nothing'}"
            )
    rows = _rows(read["data"], where)
    found = read[labels]
    if (
        not isinstance(found, list)
        or len(found) != len(rows)
        or any(type(label) is not int for label in found)
    ):
        raise DataCorrupt(
            f"{where}: {labels} is no list of {len(rows)} whole numbers, one for each row of data"
        )
    if not len(rows):
        raise DataCorrupt(f"{where} holds no picture")
    numbers = np.clip(np.array(found, object), -1, classes).astype(np.int64)
    check_labels(numbers, classes, where=where)
    return rows.reshape(len(rows), *SHAPE), numbers


def read_names(content: bytes, key: str, *, where: str) -> tuple[str, ...]:
    """Return the names of the classes in `batches.meta` or `meta`. Raises DataCorrupt, which names `where`."""
    names = read_pickle(content, where=where).get(key)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise DataCorrupt(f"{where}: {key} is no list of names")
    return tuple(name.decode("latin-1") if isinstance(name, bytes) else name for name in names)


def _rows(found: object, where: str) -> np.ndarray:
    """Make an array from an _Array's state: version, shape, type, whether columns come first in memory, bytes."""
    match getattr(found, "state", None):
        case (_, (int(rows), int(columns)), _Type(code=b"u1" | "u1"), False | 0, bytes(content)) if (
            columns == PIXELS and rows * columns == len(content)
        ):
            return np.frombuffer(content, np.uint8).reshape(rows, PIXELS)
    raise DataCorrupt(f"{where}: data is no array of bytes with {PIXELS} columns")
