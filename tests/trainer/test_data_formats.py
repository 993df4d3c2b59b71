"""Each format, written by its own writer: whole sets, and shards cut into blocks.

* CIFAR in both forms, pictures in folders, shards of WebDataset and of TensorFlow
* chosen classes, sizes, grey pictures, splits and names of classes
* blocks that together are the shard
* sets in S3, unpacked once for a pod
"""

from __future__ import annotations

import importlib.util
import io
import pickle
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.trainer.picture_formats import (
    cifar_binary,
    cifar_python,
    encoded,
    file_of,
    photographs,
    pieces,
    python2_pickle,
    slim_example,
    write_folders,
    write_tar,
    write_tfrecords,
)

from dtj_trainer.artifacts.store import Store
from dtj_trainer.data import pictures
from dtj_trainer.data.errors import DataCorrupt, DataNotFound
from dtj_trainer.data.formats import FORMATS, images
from dtj_trainer.data.formats.images import PictureForm, pixels_of
from dtj_trainer.data.index import BLOCK_BYTES
from dtj_trainer.data.pictures import PictureSet, load_pictures
from dtj_trainer.train.options import parse

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow, which writes the files"
)
TRAIN, TEST = pieces(40, 32), pieces(8, 32, seed=1)
SPLITS = (("train", TRAIN), ("test", TEST))
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def holds(data: PictureSet, train: tuple = TRAIN, test: tuple = TEST) -> None:
    for found, (pixels, labels) in ((data.train, train), (data.test, test)):
        np.testing.assert_array_equal(found.pixels, pixels)
        assert found.labels.tolist() == labels.tolist()
        assert found.labels.dtype == np.int64


def batches() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The training pictures in CIFAR-10's five batches."""
    return {
        f"data_batch_{number + 1}": (TRAIN[0][8 * number :][:8], TRAIN[1][8 * number :][:8])
        for number in range(5)
    }


def write_cifar10(folder: Path) -> None:
    for name, part in (*batches().items(), ("test_batch", TEST)):
        (folder / f"{name}.bin").write_bytes(cifar_binary(*part))
    (folder / "batches.meta.txt").write_text("\n".join(CIFAR10) + "\n\n")


def test_cifar_10s_binary_form(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    data = load_pictures(str(tmp_path))
    holds(data)
    assert (data.classes, data.class_names, data.shape) == (10, tuple(CIFAR10), (3, 32, 32))
    (tmp_path / "batches.meta.txt").unlink()
    assert load_pictures(str(tmp_path)).class_names == tuple("0123456789")


@pytest.mark.parametrize(
    "dump",
    [python2_pickle, lambda content: pickle.dumps(content, 2), lambda content: pickle.dumps(content, 4)],
)
def test_cifar_10s_python_form(tmp_path: Path, dump: Callable[[object], bytes]) -> None:
    for name, part in (*batches().items(), ("test_batch", TEST)):
        (tmp_path / name).write_bytes(dump(cifar_python(*part)))
    names = [name.encode() for name in CIFAR10]
    (tmp_path / "batches.meta").write_bytes(dump({b"num_vis": 3072, b"label_names": names}))
    data = load_pictures(str(tmp_path))
    holds(data)
    assert data.class_names == tuple(CIFAR10)


def test_cifar_100_has_fine_labels(tmp_path: Path) -> None:
    binary, python = tmp_path / "binary", tmp_path / "python"
    names = [f"class {number}".replace(" ", "_") for number in range(100)]
    for folder in (binary, python):
        folder.mkdir()
    for split, (pixels, labels) in SPLITS:
        (binary / f"{split}.bin").write_bytes(cifar_binary(pixels, labels + 90, coarse=7))
        content = cifar_python(pixels, labels + 90, b"fine_labels") | {b"coarse_labels": [7] * len(labels)}
        (python / split).write_bytes(python2_pickle(content))
    (binary / "fine_label_names.txt").write_text("\n".join(names))
    fine = [name.encode() for name in names]
    (python / "meta").write_bytes(python2_pickle({b"coarse_label_names": [], b"fine_label_names": fine}))
    for folder in (binary, python):
        data = load_pictures(str(folder))
        holds(data, (TRAIN[0], TRAIN[1] + 90), (TEST[0], TEST[1] + 90))
        assert data.class_names == tuple(names)


def test_fruits_360s_folders_and_chosen_classes(tmp_path: Path) -> None:
    fruits = ("Apple Red 1", "Banana", "Cherry", "Dates")
    for folder, part in (("Training", TRAIN), ("Test", TEST)):
        write_folders(tmp_path / folder, encoded(*part), fruits)
    (tmp_path / "test-multiple_fruits").mkdir()
    (tmp_path / "Training/Banana/Thumbs.db").write_bytes(b"none")
    data = load_pictures(str(tmp_path))
    assert data.class_names == fruits
    assert np.bincount(data.train.labels).tolist() == [10] * 4
    by_class = np.argsort(TEST[1], kind="stable")
    holds(data, (data.train.pixels, data.train.labels), (TEST[0][by_class], TEST[1][by_class]))
    chosen = load_pictures(str(tmp_path), classes=["Dates", "Banana"])
    assert chosen.class_names == ("Dates", "Banana")
    np.testing.assert_array_equal(chosen.test.pixels[chosen.test.labels == 1], TEST[0][TEST[1] == 1])
    np.testing.assert_array_equal(chosen.test.pixels[chosen.test.labels == 0], TEST[0][TEST[1] == 3])
    with pytest.raises(DataNotFound) as caught:
        load_pictures(str(tmp_path), classes=["Dates", "Mango"])
    assert (
        str(caught.value) == f"{tmp_path} has no class 'Mango'; there is Apple Red 1, Banana, Cherry, Dates"
    )


def test_chosen_classes_of_other_sets_get_new_labels(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    data = load_pictures(str(tmp_path), classes=["cat", "airplane"])
    assert (data.classes, data.class_names) == (2, ("cat", "airplane"))
    np.testing.assert_array_equal(data.test.pixels[data.test.labels == 0], TEST[0][TEST[1] == 3])


def test_imagenets_folders_with_and_without_a_third_split(tmp_path: Path) -> None:
    classes = ("n01", "n02", "n03", "n04")
    write_folders(tmp_path / "train", encoded(*TRAIN), classes)
    write_folders(tmp_path / "val", encoded(*TEST), classes)
    data = load_pictures(str(tmp_path))
    assert (len(data.train), len(data.test), data.validation) == (40, 8, None)
    write_folders(tmp_path / "test", encoded(*pieces(12, 32)), classes)
    data = load_pictures(str(tmp_path))
    assert data.validation is not None
    assert (len(data.train), len(data.test), len(data.validation)) == (40, 12, 8)


def test_a_class_without_training(tmp_path: Path) -> None:
    write_folders(tmp_path / "train", encoded(*TRAIN), "abcd")
    write_folders(tmp_path / "test", encoded(*TEST), "abce")
    with pytest.raises(DataCorrupt, match=r"test/e/3_100\.png is of a class that the pictures for training"):
        load_pictures(str(tmp_path))


def test_sizes_and_grey(tmp_path: Path) -> None:
    for number, photograph in enumerate(photographs().values()):
        for split in ("train", "test"):
            path = tmp_path / split / "all" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(photograph).save(path)
    with pytest.raises(DataCorrupt, match="pictures of different sizes need an image size"):
        load_pictures(str(tmp_path))
    assert load_pictures(str(tmp_path), PictureForm(size=64)).shape == (3, 64, 64)
    assert load_pictures(str(tmp_path), PictureForm(size=48, channels=1)).shape == (1, 48, 48)


def test_the_shorter_side_is_resized_and_the_centre_cut_out() -> None:
    wide = photographs()["chelsea"][:80, :200]
    smaller = np.asarray(Image.fromarray(wide).resize((100, 40), Image.Resampling.BILINEAR))
    found = pixels_of(wide.transpose(2, 0, 1), PictureForm(40), where="x")
    np.testing.assert_array_equal(found.transpose(1, 2, 0), smaller[:, 30:70])
    high = file_of(wide[:, :, :1].transpose(2, 1, 0))
    assert pixels_of(high, PictureForm(60, 1), where="x").shape == (1, 60, 60)
    assert pixels_of(high, PictureForm(60), where="x").shape == (3, 60, 60)


@pytest.mark.parametrize("mode", ["P", "RGBA", "CMYK", "1", "LA"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    picture = Image.fromarray(photographs()["chelsea"]).convert(mode)
    written = io.BytesIO()
    picture.save(written, "JPEG" if mode == "CMYK" else "PNG")
    found = pixels_of(written.getvalue(), PictureForm(), where="x")
    expected = np.asarray(Image.open(io.BytesIO(written.getvalue())).convert("RGB"))
    np.testing.assert_array_equal(found.transpose(1, 2, 0), expected)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "PPM"])
def test_pictures_of_pillow(kind: str) -> None:
    photograph = photographs()["coffee"].transpose(2, 0, 1)[:, :96, :96]
    found = pixels_of(file_of(photograph, kind), PictureForm(), where="x")
    assert found.dtype == np.uint8
    assert np.abs(found.astype(int) - photograph).mean() < (8 if kind in ("JPEG", "WEBP", "GIF") else 0.001)


@pytest.mark.parametrize("size", [None, 64, 100, 384])
@pytest.mark.parametrize("grey", [False, True])
def test_jpegs_have_the_same_pixels_with_and_without_simplejpeg(
    size: int | None, grey: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    photograph = photographs()["coffee"].transpose(2, 0, 1)
    written = [
        file_of(photograph[:1] if grey else photograph, "JPEG", subsampling=each) for each in (0, 1, 2)
    ]
    fast = [pixels_of(each, PictureForm(size), where="x") for each in written]
    monkeypatch.setattr(images, "simplejpeg", None)
    np.testing.assert_array_equal(fast, [pixels_of(each, PictureForm(size), where="x") for each in written])


def blocks_are_the_shard(name: str, content: bytes, expected: list[tuple[bytes | np.ndarray, int]]) -> int:
    """Cut, read block by block, and compare with what was written. Return the number of blocks."""
    shard_format = FORMATS[name]
    cuts = list(shard_format.blocks(io.BytesIO(content), len(content), where="shard"))
    end, found = 0, []
    for cut in cuts:
        assert cut.offset == end
        end += cut.length
        block = list(shard_format.examples(memoryview(content)[cut.offset : end], where="shard"))
        assert len(block) == cut.examples
        found += block
    assert all(cut.length >= BLOCK_BYTES for cut in cuts[:-1])
    assert len(found) == len(expected)
    for (picture, label), (wanted, number) in zip(found, expected, strict=True):
        assert label == number
        np.testing.assert_array_equal(bytes(picture) if isinstance(wanted, bytes) else picture, wanted)
    return len(cuts)


def test_blocks_of_cifar() -> None:
    pixels, labels = np.tile(TRAIN[0], (20, 1, 1, 1)), np.tile(TRAIN[1], 20)
    expected = list(zip(pixels, labels, strict=True))
    assert blocks_are_the_shard("cifar10", cifar_binary(pixels, labels), expected) == 3
    assert blocks_are_the_shard("cifar100", cifar_binary(pixels, labels, coarse=3), expected) == 3


def test_blocks_of_tar(tmp_path: Path) -> None:
    pixels, labels = pieces(60, 160)
    written = encoded(pixels, labels)
    content = write_tar(tmp_path / "0.tar", written)
    count = blocks_are_the_shard("tar", content, written)
    assert 2 <= count <= len(content) // BLOCK_BYTES + 1


def test_sets_in_tar_shards(tmp_path: Path) -> None:
    for split, (pixels, labels) in SPLITS:
        half = len(labels) // 2
        for number, part in enumerate((slice(half), slice(half, None))):
            write_tar(tmp_path / split / f"{number:05d}.tar", encoded(pixels[part], labels[part]))
    data = load_pictures(str(tmp_path))
    holds(data)
    assert data.class_names == tuple("0123")
    (tmp_path / "labels.txt").write_text("0:astronaut\n1:cat\n2:cup\n3:rocket\n")
    assert load_pictures(str(tmp_path)).class_names == ("astronaut", "cat", "cup", "rocket")
    (tmp_path / "more.tar").write_bytes(b"")
    with pytest.raises(DataNotFound, match=r"has more\.tar, whose path names no split"):
        load_pictures(str(tmp_path))


@needs_tensorflow
def test_tfrecords_of_tensorflow(tmp_path: Path) -> None:
    """One test, because TensorFlow takes seconds to start."""
    folders = {name: tmp_path / name for name in ("png", "raw", "old")}
    for folder in folders.values():
        folder.mkdir()
    files = {}
    for split, (pixels, labels) in SPLITS:
        pairs = list(zip(pixels, map(int, labels), strict=True))
        files[folders["png"] / f"cifar10_{split}.tfrecord"] = [
            slim_example(file_of(each), label) for each, label in pairs
        ]
        files[folders["raw"] / f"{split}-00000-of-00001"] = [
            slim_example(each.transpose(1, 2, 0).tobytes(), label, b"raw") for each, label in pairs
        ]
        files[folders["old"] / f"{'eval' if split == 'test' else split}.tfrecords"] = [
            {"image": each.tobytes(), "label": label} for each, label in pairs
        ]
    large = encoded(*pieces(60, 160))
    files[tmp_path / "large"] = [slim_example(picture, label, size=160) for picture, label in large]
    write_tfrecords(files)
    for folder in folders.values():
        holds(load_pictures(str(folder)))
    assert blocks_are_the_shard("tfrecord", (tmp_path / "large").read_bytes(), large) >= 2


def test_a_folder_with_nothing_known(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(b"x")
    (tmp_path / "notes").write_bytes(b"x")
    with pytest.raises(DataNotFound) as caught:
        load_pictures(str(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path} has no data_batch_2.bin, no data_batch_3.bin, no data_batch_4.bin, no data_batch_5.bin, "
        "no test_batch.bin; there is data_batch_1.bin, notes"
    )


def test_sets_in_s3_are_unpacked_once_for_a_pod(
    job_store: Store, job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("DTJ_UID", "8c2f")
    monkeypatch.setenv("DTJ_ATTEMPT", "1")
    write_folders(tmp_path / "fruits/Training", encoded(*TRAIN), "abcd")
    write_folders(tmp_path / "fruits/Test", encoded(*TEST), "abcd")
    (tmp_path / "cifar").mkdir()
    write_cifar10(tmp_path / "cifar")
    for path in tmp_path.rglob("*.*"):
        job_store.put_bytes(path.relative_to(tmp_path).as_posix(), path.read_bytes())
    for name in ("fruits", "cifar"):
        local, remote = load_pictures(str(tmp_path / name)), load_pictures(f"{job_uri}/{name}")
        holds(remote, (local.train.pixels, local.train.labels), (local.test.pixels, local.test.labels))
        assert isinstance(remote.train.pixels.base, np.memmap)
    with monkeypatch.context() as patch:
        patch.setattr(pictures, "_files", lambda _: pytest.fail("asks the store again"))
        assert len(load_pictures(f"{job_uri}/fruits").train) == 40
    assert load_pictures(f"{job_uri}/fruits", PictureForm(size=16)).shape == (3, 16, 16)
    job_store.put_bytes("fruits/Training/a/new.png", encoded(*TRAIN)[0][0])
    monkeypatch.setenv("DTJ_ATTEMPT", "2")
    assert len(load_pictures(f"{job_uri}/fruits").train) == 41


def test_the_command_of_the_page_reads_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs/data.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("$ python -m ")]
    monkeypatch.chdir(tmp_path)
    for folder, part in (("Training", TRAIN), ("Test", TEST)):
        write_folders(
            tmp_path / "fruits" / folder, encoded(*part), ("Apple Red 1", "Banana", "Cherry", "Dates")
        )
    options = parse(shlex.split(line)[4:], "program", "A program.", ("cnn", "resnet18"))
    data = options.load()
    assert (data.shape, data.class_names) == ((3, 64, 64), ("Banana", "Apple Red 1"))
    options = parse(["--data=fruits", "--grey", "--model=cnn"], "program", "A program.", ("cnn", "resnet18"))
    assert options.load().shape == (1, 32, 32)
