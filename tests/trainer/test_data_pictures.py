"""Sets of pictures: layouts, sizes, class names and URIs."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from tests.trainer.idx_files import FASHION_MNIST, NAMES, idx_bytes, write_pictures

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.data.errors import (
    DataCorrupt,
    DataNotFound,
    DataTooLarge,
    DataUnavailable,
    exit_on_data_error,
)
from dtj_trainer.data.formats.images import PictureForm, pixels_of
from dtj_trainer.data.layouts import fixed_files
from dtj_trainer.data.pictures import data_uri, load_pictures


@pytest.mark.parametrize("compressed", [True, False])
def test_a_set_in_mnists_layout(tmp_path: Path, compressed: bool) -> None:
    data = load_pictures(str(write_pictures(tmp_path, 30, 12, size=16, compressed=compressed)))
    assert data.train.pixels.shape == (30, 1, 16, 16)
    assert data.shape == (1, 16, 16)
    assert data.train.labels.dtype == np.int64
    assert (len(data.train), len(data.test), data.classes) == (30, 12, 10)


@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="needs Debian's dataset-fashion-mnist")
def test_fashion_mnist() -> None:
    data = load_pictures(str(FASHION_MNIST))
    assert data.class_names[:2] == ("T-shirt/top", "Trouser")
    chosen = load_pictures(str(FASHION_MNIST), classes=("Bag", "1"))
    assert chosen.class_names == ("Bag", "Trouser")
    assert len(chosen.test) == 2000
    with pytest.raises(DataNotFound, match="two of these are the same class"):
        load_pictures(str(FASHION_MNIST), classes=("Trouser", "1"))
    assert (len(data.train), len(data.test), data.classes, data.shape) == (60000, 10000, 10, (1, 28, 28))
    assert np.bincount(data.train.labels).tolist() == [6000] * 10


def corrupted(folder: Path, name: str, values: np.ndarray) -> str:
    write_pictures(folder, 30, 12)
    (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(values)))
    return str(folder)


def test_what_does_not_fit_together(tmp_path: Path) -> None:
    uri = corrupted(tmp_path, NAMES[1], np.zeros(29, "u1"))
    with pytest.raises(DataCorrupt) as caught:
        load_pictures(uri)
    assert str(caught.value) == f"{uri}: train-labels-idx1-ubyte.gz has 29 labels for 30 pictures"
    uri = corrupted(tmp_path, NAMES[2], np.zeros((12, 28, 28), "f4"))
    with pytest.raises(DataCorrupt, match=r"t10k-images-idx3-ubyte\.gz holds no pictures"):
        load_pictures(uri)
    uri = corrupted(tmp_path, NAMES[2], np.zeros((12, 20, 20), "u1"))
    with pytest.raises(DataCorrupt, match="differ in size"):
        load_pictures(uri)


def test_which_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(contract.ENV_DATA_URI, raising=False)
    with pytest.raises(DataNotFound, match=r"the job has no spec\.data\.uri"):
        data_uri(None)
    monkeypatch.setenv(contract.ENV_DATA_URI, "s3://bucket/set")
    assert data_uri(None) == "s3://bucket/set"
    assert data_uri("/here") == "/here"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataNotFound("x"), 65),
        (DataCorrupt("x"), 65),
        (DataTooLarge("x"), 65),
        (DataUnavailable("x"), 69),
    ],
)
def test_the_last_line_names_the_class(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    with pytest.raises(SystemExit) as caught, exit_on_data_error():
        raise error
    assert type(error).__name__ in set(FailureClass)
    assert caught.value.code == code
    assert capsys.readouterr().err.splitlines()[-1] == f"{type(error).__name__}: x"


def test_the_files_of_a_set_that_are_fetched_ahead() -> None:
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    there = {"readme.html", "test_batch", *batches}
    assert fixed_files(there) == [*batches, "test_batch"]
    assert fixed_files(there | {"batches.meta"}) == ["batches.meta", *batches, "test_batch"]
    assert fixed_files({*NAMES, f"{NAMES[0]}.gz", *there}) == [f"{NAMES[0]}.gz", *NAMES[1:]]
    for others in ({"train.tar"}, {"train.tfrecord"}, there - {"data_batch_3"}, set()):
        with pytest.raises(DataNotFound):
            fixed_files(others)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_pictures_are_turned_as_their_exif_orientation_says(orientation: int, kind: str) -> None:
    rows = np.arange(24, dtype="u1").reshape(4, 6) * 10
    upright = Image.fromarray(np.repeat(np.repeat(rows, 8, 0), 8, 1))
    exif, written = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    upright.convert("RGB").save(written, kind, exif=exif)
    written.seek(0)
    wanted = np.asarray(ImageOps.exif_transpose(Image.open(written)).convert("RGB")).transpose(2, 0, 1)
    content = written.getvalue()
    np.testing.assert_array_equal(pixels_of(content, PictureForm(orient=True), where="x"), wanted)
    stored = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(pixels_of(content, PictureForm(), where="x"), stored)
    assert pixels_of(content, PictureForm(16, orient=True), where="x").shape == (3, 16, 16)
