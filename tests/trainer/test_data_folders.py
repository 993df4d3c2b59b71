"""Nothing of a set is passed over in silence: files and classes that nobody reads, and what ImageFolder takes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.trainer.idx_files import idx_bytes

from dtj_trainer.data import check, stage
from dtj_trainer.data.class_names import distinct, of_lines
from dtj_trainer.data.errors import DataCorrupt, DataNotFound
from dtj_trainer.data.folders import folders_of, hint
from dtj_trainer.data.pictures import load_pictures

BASE = [f"{split}/{name}/0.png" for split in ("train", "test") for name in ("a", "b")]
KINDS = {".png": "PNG", ".tif": "TIFF", ".TIFF": "TIFF"}


def write(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in KINDS:
            Image.new("RGB", (8, 8), (9, 3, 3)).save(path, KINDS[path.suffix])
        else:
            path.write_bytes(b"x")
    return folder


def test_tiff_and_deeper_folders_are_read_as_image_folder_does(tmp_path: Path) -> None:
    write(tmp_path, *BASE, "train/c/0.tif", "train/c/1.TIFF", "test/c/0.tif", "train/a/part/more/1.png")
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere", "2.png")
    (tmp_path / "train/b/linked").symlink_to(tmp_path / "elsewhere")
    data = load_pictures(str(tmp_path))
    assert data.class_names == ("a", "b", "c")
    assert np.bincount(data.train.read(np.arange(len(data.train))).labels).tolist() == [2, 2, 2]


def test_what_is_passed_over_is_counted_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(
        tmp_path / "set",
        *BASE,
        "train/a/1.heic",
        "train/a/2.HEIC",
        "train/loose.png",
        "extra/3.jpg",
        "README",
    )
    sentence = (
        "passed over: 2 .heic in folders of classes, 1 .jpg in no folder of a split, 1 files without an ending in no "
        "folder of a split, 1 .png directly in train/"
    )
    load_pictures(str(folder))
    assert sorted(sentence[13:].split(", ")) == sorted(
        caplog.messages[-1].split("passed over: ")[1].split(", ")
    )
    for main, arguments in ((check.main, [str(folder)]), (stage.main, [str(folder), str(tmp_path / "to")])):
        main([*arguments, "--processes", "1"])
        printed = capsys.readouterr()
        assert "2 .heic in folders of classes" in printed.out + printed.err


@pytest.mark.parametrize("file", ["train/c/0.heic", "test/c/notes.txt", "train/c/"])
def test_a_class_without_a_picture_is_an_error(tmp_path: Path, file: str) -> None:
    write(tmp_path, *BASE, *([file] if not file.endswith("/") else []))
    (tmp_path / file).parent.mkdir(exist_ok=True)
    if file.endswith("/"):
        (tmp_path / file).mkdir()
    with pytest.raises(
        DataNotFound, match=f"has no picture in {file[:7].rstrip('/')}.*leave the class out by --classes"
    ):
        load_pictures(str(tmp_path))
    with pytest.raises(DataNotFound, match="has no picture in"):
        stage.stage(
            stage.StageOptions(
                str(tmp_path), str(tmp_path / "to"), 10**6, 1, 1, stage.PictureForm(), (), False
            )
        )
    assert load_pictures(str(tmp_path), classes=("b", "a")).class_names == ("b", "a")


def test_names_of_s3_have_empty_folders_too() -> None:
    assert [*folders_of([*BASE, "train/", "train/a/", "train/c/"]).without] == [("train", "c")]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["fruits/Training/Apple/0.jpg"],
            "has Training/ only below fruits/: give the folder fruits instead",
        ),
        (["train/0.png"], "has train/0.png in no folder of a class: pictures lie in train/CLASS/"),
        (
            ["cats/0.png", "dogs/0.png"],
            "has 2 pictures, and no folder of a split: they lie in train/CLASS/ and test/CLASS/",
        ),
        (["a.bin"], ""),
    ],
)
def test_pictures_elsewhere_are_told_as_pictures(tmp_path: Path, names: list[str], said: str) -> None:
    assert hint(names).startswith(said)
    if said:
        with pytest.raises(DataNotFound, match=said[:30]):
            load_pictures(str(write(tmp_path, *names)))


def emnist(folder: Path, kind: str, labels: list[int]) -> None:
    pixels = np.arange(4 * 28 * 28, dtype="u4").astype("u1").reshape(4, 28, 28)
    for split in ("train", "test"):
        for part, values in (("images-idx3", pixels), ("labels-idx1", np.array(labels, "u1"))):
            (folder / f"emnist-{kind}-{split}-{part}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(values)))


def test_emnist_has_its_own_names(tmp_path: Path) -> None:
    emnist(tmp_path, "letters", [1, 2, 26, 3])
    data = load_pictures(str(tmp_path))
    found = data.train.read(np.arange(4))
    assert data.class_names == tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert found.labels.tolist() == [0, 1, 25, 2]
    assert found.pixels[0, 0, 0, 1] == 28, "the pictures are upright"
    emnist(tmp_path, "balanced", [0, 10, 46, 36])
    with pytest.raises(DataNotFound, match="has 2 sets of EMNIST, balanced, letters"):
        load_pictures(str(tmp_path))
    for file in tmp_path.glob("*letters*"):
        file.unlink()
    data = load_pictures(str(tmp_path))
    assert (len(data.class_names), data.class_names[46], data.class_names[36]) == (47, "t", "a")


def test_classes_of_one_name_are_numbered() -> None:
    assert of_lines(b"0:tench\ncrane\ncrane\n\ncrane (2)\n") == ("tench", "crane", "crane (3)", "crane (2)")
    assert distinct("aab") == ("a", "a (2)", "b")


def test_skip_corrupt_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=f"^{tmp_path} has no index: --skip-corrupt"):
        load_pictures(str(write(tmp_path, *BASE)), skip_corrupt=True)
    (tmp_path / "train/a/0.png").write_bytes((tmp_path / "train/a/0.png").read_bytes()[:40])
    with pytest.raises(DataCorrupt, match="begins as a PNG and is cut off or damaged: it has 40 bytes"):
        load_pictures(str(tmp_path))
