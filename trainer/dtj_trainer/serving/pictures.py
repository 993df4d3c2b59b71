"""A picture file as the input of a model: decoded within limits, and prepared as in the training's test."""

from __future__ import annotations

import io
import threading
from contextlib import nullcontext
from http import HTTPStatus
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dtj_trainer.data.errors import DataError
from dtj_trainer.data.formats.images import Form, pixels_of
from dtj_trainer.serving.refusal import Refused, bad

if TYPE_CHECKING:
    from dtj_trainer.serving.description import Preprocessing

_FORMATS = ("PNG", "JPEG")
_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
_START_OF_SCAN = b"\xff\xda"
_MAX_SCANS = 100
"""Each scan of a progressive JPEG is a walk over all pixels, and takes 12 bytes. Encoders write about ten."""
_LARGE_PIXELS = 2_000_000
_FEW_BYTES = _FEW_PIXELS = 4096
_HEADER, _HEADER_END = b"IHDR", 33
_one_large = threading.Lock()
"""Large pictures are decoded one after the other, so that their pixels are in memory once."""


def example_of(
    content: bytes, form: Preprocessing, max_pixels: int, dtype: np.dtype[np.generic]
) -> np.ndarray:
    """Return a batch of one picture. Raises Refused for one that is no PNG or JPEG, is damaged or too large."""
    if not content:
        raise bad("the body is empty: send the file of a picture, or the field `data` of a form")
    if not content.startswith(_STARTS):
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "content",
            f"the body is neither a PNG nor a JPEG file: it begins with {content[:4].hex(' ')}",
        )
    if content.startswith(_STARTS[1]) and content.count(_START_OF_SCAN) > _MAX_SCANS:
        raise bad(f"the JPEG file has more than {_MAX_SCANS} scans")
    with _one_large if _count(content, max_pixels) > _LARGE_PIXELS else nullcontext():
        try:
            pixels = pixels_of(content, Form(form.size, form.channels, form.orient), where="the body")
        except DataError as error:
            raise bad(str(error)) from error
    return prepared(pixels, form, dtype)[None]


def is_small(content: bytes) -> bool:
    """Whether a file is a PNG of so few bytes and pixels that it is decoded sooner than a thread begins to."""
    sides = _few_sides(content)
    return sides is not None and sides[0] * sides[1] <= _FEW_PIXELS


def _few_sides(content: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG file of few bytes; None for others.

    The header is the first chunk. Pillow takes later ones too, which only a forged file has.
    """
    plain = content[12:16] == _HEADER and content.count(_HEADER) == 1
    whole = _HEADER_END <= len(content) <= _FEW_BYTES
    if not (whole and plain and content.startswith(_STARTS[0])):
        return None
    return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])


def _count(content: bytes, max_pixels: int) -> int:
    """Return the number of pixels by the file's header. Raises Refused."""
    width, height = _few_sides(content) or _sides(content)
    if width * height > max_pixels:
        raise Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "pixels",
            f"the picture has {width} x {height} = {width * height} pixels; at most {max_pixels} are decoded",
        )
    return width * height


def _sides(content: bytes) -> tuple[int, int]:
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as opened:
            return opened.size
    except Exception as error:  # Pillow's readers raise many classes, also for too many pixels.
        raise bad(f"the picture can't be read: {error}") from error


def prepared(pixels: np.ndarray, form: Preprocessing, dtype: np.dtype[np.generic]) -> np.ndarray:
    """Return pixels (uint8; channels, height, width) as the model takes them."""
    if form.invert:
        pixels = 255 - pixels
    if form.range != (0.0, 255.0) or form.mean or form.deviation:
        low, high = form.range
        values = pixels.astype(np.float32) * np.float32((high - low) / 255) + np.float32(low)
        if form.mean:
            values -= np.array(form.mean, np.float32)[:, None, None]
        if form.deviation:
            values /= np.array(form.deviation, np.float32)[:, None, None]
        pixels = values
    ordered = pixels if form.layout == "NCHW" else pixels.transpose(1, 2, 0)
    return np.ascontiguousarray(ordered, dtype)


def shown(example: np.ndarray, form: Preprocessing) -> bytes:
    """Return an example as the model gets it (a batch of one) as a PNG file.

    Mean, deviation and range are undone, so that values are 0 to 255 again. An inverted picture stays inverted.
    """
    ordered = example[0] if form.layout == "NCHW" else example[0].transpose(2, 0, 1)
    values = ordered.astype(np.float32)
    if form.deviation:
        values *= np.array(form.deviation, np.float32)[:, None, None]
    if form.mean:
        values += np.array(form.mean, np.float32)[:, None, None]
    low, high = form.range
    values = (values - np.float32(low)) * np.float32(255 / (high - low))
    rows = np.rint(values).clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
    written = io.BytesIO()
    Image.fromarray(rows[:, :, 0] if form.channels == 1 else np.ascontiguousarray(rows)).save(written, "PNG")
    return written.getvalue()
