"""`stage` and `check`, and reading what was staged.

* shards from folders of pictures, idx files and shards, in a folder and in S3
* the same shards for the same seed, by one process or two, in one run or two
* an index beside shards that exist
* the commands of docs/data-shards.md
* damaged pictures and shards: named, or left out and counted
"""

from __future__ import annotations

import hashlib
import io
import re
import shlex
import tarfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.trainer.conftest import REPOSITORY, ObjectStore
from tests.trainer.idx_files import write_pictures

from dtj_trainer import contract
from dtj_trainer.artifacts.store import Store, open_store
from dtj_trainer.data import check, origins, stage
from dtj_trainer.data.cache import BlockCache
from dtj_trainer.data.errors import DataCorrupt, DataNotFound
from dtj_trainer.data.formats.images import PictureForm
from dtj_trainer.data.index import INDEX_NAME, DataIndex
from dtj_trainer.data.pictures import Pictures, PictureSet, load_pictures
from dtj_trainer.data.stored_examples import SKIPPED, StoredExamples
from dtj_trainer.data.stored_set import StoredSet, open_stored_set
from dtj_trainer.data.targets import FolderTarget
from dtj_trainer.train.options import parse

CLASSES = ("Apple", "Banana", "Cherry")
TRAIN, TEST, SIDE = 66, 6, 128


def noise(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), np.uint8)


@pytest.fixture(autouse=True)
def listed_once_a_test() -> None:
    """Forget the files of earlier tests: a process of `stage` lists a set once."""
    forget()


def forget() -> None:
    origins.files_at.cache_clear()
    origins.dataset_at.cache_clear()


@pytest.fixture(scope="module")
def fruits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures in folders, 3.3 MB for training: noise, which nothing makes smaller."""
    folder = tmp_path_factory.mktemp("fruits")
    for number in range(TRAIN + TEST):
        part = "Training" if number < TRAIN else "Test"
        path = folder / part / CLASSES[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(number)).save(path)
    return folder


def staged(
    source: object, target: object, *options: str, megabytes: float = 2.0, processes: int = 1
) -> DataIndex:
    arguments = [
        str(source),
        str(target),
        f"--shard-megabytes={megabytes}",
        f"--processes={processes}",
        *options,
    ]
    assert stage.main(arguments) == 0
    opened = open_stored_set(str(target))
    assert opened
    return opened.index


def seen(pictures: Pictures) -> Counter[tuple[bytes, int]]:
    return Counter(
        (hashlib.sha1(pixels.tobytes()).digest(), int(label))
        for pixels, label in zip(pictures.pixels, pictures.labels, strict=True)
    )


def of_noise(numbers: Iterable[int]) -> Counter[tuple[bytes, int]]:
    pixels = {number: np.ascontiguousarray(noise(number).transpose(2, 0, 1)) for number in numbers}
    return Counter((hashlib.sha1(values.tobytes()).digest(), number % 3) for number, values in pixels.items())


def read_all(examples: StoredExamples, batch: int = 7, seed: int = 3) -> Pictures:
    """Read every example once, in an order that mixes blocks."""
    order = np.random.default_rng(seed).permutation(len(examples))
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    examples.expect(iter(batches))
    read = [examples.read(ids) for ids in batches]
    return Pictures(
        np.concatenate([part.pixels for part in read]), np.concatenate([part.labels for part in read])
    )


def opened(uri: object, **options: object) -> StoredSet:
    found = open_stored_set(str(uri), **options)  # type: ignore[arg-type]
    assert found
    return found


def shards(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha1(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.tar"))
    }


def test_a_staged_folder_has_each_picture_once_and_its_statistics(fruits: Path, tmp_path: Path) -> None:
    index = staged(fruits, tmp_path / "set")
    assert (index.format, index.classes) == ("tar", CLASSES)
    assert {name: split.examples for name, split in index.splits.items()} == {"train": TRAIN, "test": TEST}
    assert list(shards(tmp_path / "set")) == ["test/000000.tar", "train/000000.tar", "train/000001.tar"]
    assert len(index.splits["train"].blocks) > 3
    values = np.stack([noise(number) for number in range(TRAIN)]) / 255
    assert index.mean == pytest.approx(values.mean((0, 1, 2)))
    assert index.deviation == pytest.approx(values.std((0, 1, 2)))
    found = opened(tmp_path / "set")
    assert seen(read_all(found.examples("train"))) == of_noise(range(TRAIN))
    assert seen(read_all(found.examples("test"))) == of_noise(range(TRAIN, TRAIN + TEST))
    assert found.examples("train").read(np.array([5, 3, 5])).labels.tolist() == [
        int(found.examples("train").read(np.array([id_])).labels[0]) for id_ in (5, 3, 5)
    ]
    with pytest.raises(DataNotFound, match="no split 'validation'; there is train, test"):
        found.examples("validation")
    found.close()


def test_the_seed_alone_decides_the_shards(fruits: Path, tmp_path: Path) -> None:
    for name, options, processes in (("a", [], 1), ("b", [], 2), ("c", ["--seed=2"], 1)):
        staged(fruits, tmp_path / name, *options, processes=processes)
    assert shards(tmp_path / "a") == shards(tmp_path / "b")
    assert shards(tmp_path / "a") != shards(tmp_path / "c")
    first = [example.label for example in opened(tmp_path / "a").examples("train").stored(np.arange(30))]  # type: ignore[union-attr]
    assert first != sorted(first), "the classes are mixed"


def test_an_interrupted_run_writes_only_what_is_missing(
    fruits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(fruits, tmp_path / "whole", megabytes=0.6)
    put, allowed, written = FolderTarget.put, 4, list[str]()

    def counted(target: FolderTarget, name: str, path: Path) -> str | None:
        if len(written) == allowed:
            raise KeyboardInterrupt
        written.append(name)
        return put(target, name, path)

    monkeypatch.setattr(FolderTarget, "put", counted)
    with pytest.raises(KeyboardInterrupt):
        staged(fruits, tmp_path / "set", megabytes=0.6)
    assert len(list((tmp_path / "set/_staging").iterdir())) == 4
    assert open_stored_set(str(tmp_path / "set")) is None, "no index before the last shard"
    allowed = 99
    staged(fruits, tmp_path / "set", megabytes=0.6)
    assert len(written) == len(set(written)) == len(shards(tmp_path / "whole"))
    assert shards(tmp_path / "set") == shards(tmp_path / "whole")
    assert not (tmp_path / "set/_staging").exists()
    staged(fruits, tmp_path / "set", megabytes=0.6)
    assert len(written) == len(shards(tmp_path / "whole")), "a complete set is not written again"


def test_records_of_another_order_are_not_used(
    fruits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FolderTarget.write

    def without_index(target: FolderTarget, name: str, content: bytes) -> None:
        if name == INDEX_NAME:
            raise KeyboardInterrupt
        write(target, name, content)

    monkeypatch.setattr(FolderTarget, "write", without_index)
    with pytest.raises(KeyboardInterrupt):
        staged(fruits, tmp_path / "set")
    monkeypatch.setattr(FolderTarget, "write", write)
    staged(fruits, tmp_path / "set", "--seed=2")
    staged(fruits, tmp_path / "other", "--seed=2")
    assert shards(tmp_path / "set") == shards(tmp_path / "other")


def test_a_set_in_s3_is_read_by_ranges_and_then_from_the_cache(
    fruits: Path, job_store: Store, tmp_path: Path
) -> None:
    uri = job_store.uri("set")
    job_store.put_bytes("folder/Training/Apple/0.png", (fruits / "Training/Apple/0.png").read_bytes())
    for source in (fruits, job_store.uri("folder")):
        staged(source, f"{uri}/{Path(str(source)).name}")
    uri = f"{uri}/{fruits.name}"
    assert len(opened(job_store.uri("set/folder")).examples("train")) == 1
    for received in (True, False):
        found = opened(uri, cache=BlockCache(tmp_path, 10**8))
        assert seen(read_all(found.examples("train"))) == of_noise(range(TRAIN))
        assert (found.ranges.received.total > 3e6) is received
        found.close()


def test_blocks_in_memory_stay_within_the_limit(fruits: Path, tmp_path: Path) -> None:
    index = staged(fruits, tmp_path / "set", megabytes=9)
    blocks = index.splits["train"].blocks
    assert len(blocks) == 4
    limit = 2 * max(block.length for block in blocks)
    examples = opened(tmp_path / "set", memory=limit, window=1).examples("train")
    batches = np.array_split(np.arange(TRAIN), 11)
    examples.expect(iter(batches))
    assert sum(seen(examples.read(ids)).total() for ids in batches) == TRAIN
    assert examples.most_bytes <= limit
    examples.close()


def test_statistics_follow_the_form_of_the_pictures(fruits: Path, tmp_path: Path) -> None:
    write_pictures(tmp_path / "idx", 50, 10)
    index = staged(tmp_path / "idx", tmp_path / "grey")
    in_colours = load_pictures(str(tmp_path / "grey"), PictureForm(channels=3))
    assert (in_colours.shape[0], in_colours.mean) == (3, index.mean * 3)
    assert in_colours.deviation == index.deviation * 3
    colours = staged(fruits, tmp_path / "colours")
    in_grey = load_pictures(str(tmp_path / "colours"), PictureForm(channels=1))
    pixels = in_grey.train.read(np.arange(len(in_grey.train))).pixels / 255
    assert (in_grey.shape[0], len(colours.mean)) == (1, 3)
    assert in_grey.mean == pytest.approx((pixels.mean(),), abs=0.003)
    with pytest.raises(ValueError, match="have 1 channels, and the set's mean has 3 and its deviation 3"):
        PictureSet(in_grey.train, in_grey.test, 2, (), None, colours.mean, colours.deviation)


def test_grey_pixels_stay_grey_and_equal(tmp_path: Path) -> None:
    write_pictures(tmp_path / "idx", 50, 10)
    index = staged(tmp_path / "idx", tmp_path / "set")
    assert len(index.mean) == 1
    original, found = load_pictures(str(tmp_path / "idx")), opened(tmp_path / "set")
    for name, pictures in (("train", original.train), ("test", original.test)):
        examples = found.examples(name)
        assert examples.shape == (1, 28, 28)
        assert seen(read_all(examples)) == seen(pictures)


def test_programs_read_a_set_with_an_index_by_blocks(fruits: Path, tmp_path: Path) -> None:
    staged(fruits, tmp_path / "set")
    data = load_pictures(str(tmp_path / "set"), PictureForm(16))
    assert (data.classes, data.class_names, data.shape) == (3, CLASSES, (3, 16, 16))
    assert (len(data.train), len(data.test), len(data.train.blocks)) == (TRAIN, TEST, 4)
    assert len(data.mean) == len(data.deviation) == 3
    options = parse(
        [f"--data={tmp_path / 'set'}", f"--data-cache={tmp_path / 'cache'}", "--skip-corrupt"],
        "program",
        "A program.",
        ("cnn", "resnet18"),
    )
    damage(tmp_path / "set/train/000000.tar", 1000)
    labels = options.load().train.read(np.arange(TRAIN)).labels
    assert 0 < np.sum(labels == SKIPPED) < TRAIN
    with pytest.raises(DataNotFound, match="set is a set with an index, which is read with all classes"):
        load_pictures(str(tmp_path / "set"), classes=["Apple"])


def test_classes_and_size_by_option(fruits: Path, tmp_path: Path) -> None:
    index = staged(fruits, tmp_path / "set", "--classes=Cherry, Apple", "--size=32")
    assert index.classes == ("Cherry", "Apple")
    assert index.splits["train"].examples == TRAIN * 2 // 3
    read = read_all(opened(tmp_path / "set").examples("train"))
    assert read.pixels.shape == (44, 3, 32, 32)
    assert Counter(read.labels.tolist()) == {0: 22, 1: 22}


def png(values: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(values).save(content, "PNG")
    return content.getvalue()


def write_shard(path: Path, numbers: range, damaged: int = -1) -> None:
    """As GNU tar does, with a number and a picture for each example, and with other files among them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for number in numbers:
            content = b"\x89PNG damaged" if number == damaged else png(noise(number))
            for ending, part in (("cls", b"%d" % (number % 3)), ("json", b"{}"), ("png", content)):
                member = tarfile.TarInfo(f"{number}.{ending}")
                member.size = len(part)
                archive.addfile(member, io.BytesIO(part))


def test_shards_that_exist_get_an_index_or_are_shuffled(tmp_path: Path) -> None:
    for name, numbers in (("train-0", range(40)), ("train-1", range(40, TRAIN)), ("test-0", range(90, 96))):
        write_shard(tmp_path / f"set/{name}.tar", numbers)
    (tmp_path / "set/labels.txt").write_text("0:apple\n1:banana\n2:cherry\n")
    before = shards(tmp_path / "set")
    staged(tmp_path / "set", tmp_path / "shuffled")
    assert stage.main([str(tmp_path / "set"), "--processes=1"]) == 0
    assert shards(tmp_path / "set") == before
    for name in ("set", "shuffled"):
        found = opened(tmp_path / name)
        assert found.index.classes == ("apple", "banana", "cherry")
        assert seen(read_all(found.examples("train"))) == of_noise(range(TRAIN))
        assert seen(read_all(found.examples("test"))) == of_noise(range(90, 96))
    in_place, shuffled = opened(tmp_path / "set").index, opened(tmp_path / "shuffled").index
    assert in_place.mean == pytest.approx(shuffled.mean)
    assert opened(tmp_path / "set").examples("train").read(np.arange(4)).labels.tolist() == [0, 1, 2, 0]


def test_a_damaged_picture_is_named_or_left_out(
    fruits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shard(tmp_path / "set/train/0.tar", range(8), damaged=5)
    write_shard(tmp_path / "set/test/0.tar", range(8, 10))
    folder = tmp_path / "folder"
    for number in (0, 3):
        path = folder / "train/Apple" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(noise(number)) if number else b"\x89PNG damaged")
    (folder / "test/Apple").mkdir(parents=True)
    (folder / "test/Apple/1.png").write_bytes(png(noise(0)))
    for source, fault in (
        (tmp_path / "set", "train/0.tar, block at byte 0, example 5"),
        (folder, "train/Apple/0.png"),
    ):
        target = tmp_path / f"{source.name}-staged"
        with pytest.raises(SystemExit) as ended:
            staged(source, target)
        assert ended.value.code == contract.EXIT_DATA
        assert fault in capsys.readouterr().err
        index = staged(source, target, "--skip-corrupt")
        assert index.splits["train"].examples == (7 if source.name == "set" else 1)
        assert fault in capsys.readouterr().err


def faults(capsys: pytest.CaptureFixture[str], uri: object) -> list[str]:
    code = check.main([str(uri), "--processes=1"])
    *found, last = capsys.readouterr().out.splitlines()
    assert code == (contract.EXIT_DATA if found else 0)
    assert last.endswith(f"examples can be read, {len(found)} faults")
    return found


def test_check_names_each_damaged_block_shard_and_picture(
    fruits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = staged(fruits, tmp_path / "set")
    capsys.readouterr()
    assert faults(capsys, tmp_path / "set") == []
    place = index.splits["train"].blocks[1]
    shard = tmp_path / "set" / index.splits["train"].shards[place.shard].key
    damage(shard, place.offset + place.length // 2)
    (tmp_path / "set/test/000000.tar").unlink()
    damaged, missing = faults(capsys, tmp_path / "set")
    assert f"set/train/000000.tar, block at byte {place.offset}: the CRC-32" in damaged
    assert "set/test/000000.tar does not exist" in missing
    examples = opened(tmp_path / "set").examples("train")
    with pytest.raises(DataCorrupt, match=r"train/000000\.tar, block at byte"):
        read_all(examples)
    examples = opened(tmp_path / "set", skip_corrupt=True).examples("train")
    assert np.sum(read_all(examples).labels == SKIPPED) == place.examples
    assert examples.skipped.total == place.examples


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def test_check_of_sets_without_an_index(
    fruits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert faults(capsys, fruits) == []
    for number in (0, 1):
        path = tmp_path / f"folder/train/Apple/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(noise(number))[: 1000 * number])
    first, second = faults(capsys, tmp_path / "folder")
    assert "train/Apple/0.png" in first
    assert "train/Apple/1.png" in second
    for part in ("train", "test"):
        write_shard(tmp_path / f"tar/{part}.tar", range(4), damaged=2 if part == "test" else -1)
    (fault,) = faults(capsys, tmp_path / "tar")
    assert "tar/test.tar, block at byte 0, example 2 of the block" in fault
    write_pictures(tmp_path / "idx", 20, 10, compressed=False)
    assert faults(capsys, tmp_path / "idx") == []
    (tmp_path / "idx/train-images-idx3-ubyte").write_bytes(b"no idx")
    forget()
    (fault,) = faults(capsys, tmp_path / "idx")
    assert "train-images-idx3-ubyte is not in idx format" in fault


def test_the_commands_of_the_page_run(
    fruits: Path,
    tmp_path: Path,
    object_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fruits").symlink_to(fruits)
    for split in ("train", "test"):
        write_shard(tmp_path / f"{split}.tar", range(2))
        open_store("s3://training/webdataset").put_file(f"{split}/0.tar", tmp_path / f"{split}.tar")
    page = (REPOSITORY / "docs/data-shards.md").read_text()
    commands = re.findall(r"^\$ dtj data (stage|check) (.*)$", page, re.MULTILINE)
    assert [name for name, _ in commands] == ["stage", "stage", "check"]
    for name, words in commands:
        main = stage.main if name == "stage" else check.main
        assert main([*shlex.split(words), "--processes=1"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"s3://training/fruits: {TRAIN + TEST} examples can be read, 0 faults"
    assert opened("s3://training/webdataset").index.splits["train"].examples == 2
