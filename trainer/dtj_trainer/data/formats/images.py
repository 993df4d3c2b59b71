"""Pictures: files decoded by Pillow, within limits, to arrays of one form."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError

try:
    import simplejpeg
except ModuleNotFoundError:  # A user's own container image may have Pillow alone.
    simplejpeg = None

from dtj_trainer.data.errors import DataCorrupt, DataTooLarge
from dtj_trainer.data.index import MAX_EXAMPLE_BYTES

MAX_PIXELS = 50_000_000
"""Limit of one picture, checked before the picture is decoded."""
MAX_MEMORY_BYTES = 4 << 30
"""Limit of the pixels of a split that is read whole into memory."""
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
_BEGINNINGS = {b"\xff\xd8": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"II*\0": "TIFF", b"MM\0*": "TIFF"}
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""How to turn a picture, by the value of its EXIF orientation."""
_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class PictureForm:
    """The form in which pictures are wanted.

    `size`: side in pixels; the shorter side is resized to `size` and the centre is cut out. None leaves pictures as
    they are. `channels`: 1 for grey, 3 for RGB. None means RGB for picture files, and leaves pixels as they are.
    `orient`: turn a picture as its EXIF orientation says, which cameras write in place of turning the pixels.
    """

    size: int | None = None
    channels: int | None = None
    orient: bool = False


def pixels_of(picture: bytes | memoryview | np.ndarray, form: PictureForm, *, where: str) -> np.ndarray:
    """Return a stored picture as uint8, (channels, height, width), in the wanted form.

    Raises DataCorrupt, which names `where`, for what is no picture, is damaged, or exceeds a limit.
    """
    if isinstance(picture, np.ndarray):
        channels, height, width = picture.shape
        sized = form.size in (None, height) and form.size in (None, width)
        if sized and form.channels in (None, channels):
            return picture
        form = PictureForm(form.size, form.channels or channels)
        rows = np.ascontiguousarray(picture.transpose(1, 2, 0))
        opened = Image.fromarray(rows[:, :, 0] if channels == 1 else rows)
    else:
        opened = _decode_jpeg(picture, form) or _open(picture, where)
    turn = _turn(picture) if form.orient and not isinstance(picture, np.ndarray) else None
    try:
        # Pillow decodes a JPEG at a half, quarter or eighth of its size where that is large enough, which is faster.
        if form.size:
            opened.draft(None, (2 * form.size, 2 * form.size))
        found = opened.convert(_MODES[form.channels or 3])
    except Exception as error:  # Pillow's decoders raise many classes for damaged content.
        raise DataCorrupt(f"{where}: the picture is damaged: {error}") from error
    if turn is not None:
        found = found.transpose(turn)
    if form.size:
        found = _centre(found, form.size)
    values = np.asarray(found)
    return np.ascontiguousarray(values[None] if values.ndim == 2 else values.transpose(2, 0, 1))


def _turn(content: bytes | memoryview) -> Image.Transpose | None:
    """Return how to turn a picture file by its EXIF orientation; None without one, or where EXIF data is damaged."""
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as opened:
            if opened.format == "TIFF":  # Pillow turns a TIFF by itself.
                return None
            return _TURNS.get(opened.getexif().get(_ORIENTATION, 1))
    except Exception:  # noqa: BLE001  # Pillow's readers raise many classes for damaged content.
        return None


class Stack:
    """Pictures of one size, gathered into one array: uint8, (`count`, channels, height, width)."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._filled = 0
        self._first = ""
        self._pixels = np.empty((0, 0, 0, 0), np.uint8)

    def add(self, pixels: np.ndarray, *, where: str) -> None:
        """Add a picture. Raises DataCorrupt for another size, and DataTooLarge above MAX_MEMORY_BYTES of all."""
        if not self._filled:
            check_memory(self._count * pixels.size, f"{self._count} pictures such as {where}")
            self._first = where
            self._pixels = np.empty((self._count, *pixels.shape), np.uint8)
        if pixels.shape != self._pixels.shape[1:]:
            raise DataCorrupt(
                f"{where} is {_shown(pixels.shape)}, and {self._first} is {_shown(self._pixels.shape[1:])}: "
                "pictures of different sizes need an image size (--image-size)"
            )
        self._pixels[self._filled] = pixels
        self._filled += 1

    @property
    def pixels(self) -> np.ndarray:
        """The pictures added."""
        return self._pixels[: self._filled]


def _decode_jpeg(content: bytes | memoryview, form: PictureForm) -> Image.Image | None:
    """Decode a JPEG to RGB by simplejpeg, in about half of Pillow's time and to the same pixels.

    Return None for what Pillow has to do: other pictures and colours, damaged or too large ones, and those that
    Pillow decodes at a part of their size.
    """
    if (
        simplejpeg is None
        or form.channels == 1
        or content[:2] != b"\xff\xd8"
        or len(content) > MAX_EXAMPLE_BYTES
    ):
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
        small = height * width <= MAX_PIXELS and (not form.size or min(height, width) < 4 * form.size)
        if small and colours in ("YCbCr", "Gray"):
            return Image.fromarray(simplejpeg.decode_jpeg(content, "RGB"))
    except ValueError:  # Let Pillow decode the picture and fail: Pillow's messages are clearer.
        pass
    return None


def check_memory(size: int, what: str) -> None:
    """Raise DataTooLarge if pixels of `size` bytes exceed MAX_MEMORY_BYTES."""
    if size > MAX_MEMORY_BYTES:
        raise DataTooLarge(
            f"{what}: {size} bytes of pixels, and at most {MAX_MEMORY_BYTES} of a split are read into memory: "
            "set a smaller image size, or write the set as shards by `dtj data stage`"
        )


def _open(content: bytes | memoryview, where: str) -> Image.Image:
    if len(content) > MAX_EXAMPLE_BYTES:
        raise DataCorrupt(f"{where}: {len(content)} bytes; a picture has at most {MAX_EXAMPLE_BYTES}")
    try:
        opened = Image.open(io.BytesIO(content), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise DataCorrupt(
            f"{where} has too many pixels; a picture has at most {MAX_PIXELS}: {error}"
        ) from error
    except UnidentifiedImageError as error:
        begin = bytes(content[:4])
        for magic, kind in _BEGINNINGS.items():
            if begin.startswith(magic):
                raise DataCorrupt(
                    f"{where} begins as a {kind} and is cut off or damaged: it has {len(content)} bytes"
                ) from error
        raise DataCorrupt(
            f"{where} is no picture of {', '.join(_FORMATS)}: it begins with {begin.hex(' ') or 'nothing'}"
        ) from error
    except Exception as error:  # Pillow's readers raise many classes for damaged content.
        raise DataCorrupt(f"{where}: the picture is damaged: {error}") from error
    width, height = opened.size
    if width * height > MAX_PIXELS:
        raise DataCorrupt(
            f"{where} has {width} x {height} = {width * height} pixels; a picture has at most {MAX_PIXELS}"
        )
    if opened.mode.startswith(("I", "F")):
        raise DataCorrupt(f"{where} has more than 8 bits a channel: dtj reads pictures with 8")
    return opened


def _centre(picture: Image.Image, size: int) -> Image.Image:
    width, height = picture.size
    side = min(width, height)
    if width == height == size:
        return picture
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return picture.resize((size, size), Image.Resampling.BILINEAR, box=box)


def _shown(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{width} x {height} with {channels} channel{'s' if channels > 1 else ''}"
