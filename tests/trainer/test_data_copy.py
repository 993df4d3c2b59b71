"""`dtj run --data`: what the embedded store has afterwards, and what is told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer.test_embedded_store import server, wait_for_end
from tests.unit.support.jobs import job

from dtj.api.errors import DtjError, Unusable
from dtj.local.data_copy import copy_folder
from dtj.local.object_store import open_store
from dtj.local.store_choice import S3Store, chosen_store
from dtj_trainer.artifacts.store import open_store as open_prefix


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if (tmp_path / "s3" / "server.json").exists():
        wait_for_end(server(tmp_path))


def test_a_folder_is_copied_once(home: Path, tmp_path: Path) -> None:
    folder, other = tmp_path / "data", tmp_path / "other"
    for path, content in (("data/a/b", b"12345"), ("data/c", b"123"), ("other/c", b"321"), ("other/d", b"1")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    told: list[tuple[int, int]] = []
    with open_store(home, ["datasets"]) as store:
        there = open_prefix("s3://datasets/set", store.environment)

        def copied(source: Path) -> tuple[int, int, list[str]]:
            copy = copy_folder(store.environment, source, "s3://datasets/set", lambda *p: told.append(p))
            return copy.sent, copy.removed, [*copy.others]

        def contents() -> dict[str, bytes]:
            return {item.key: there.get_bytes(item.key) for item in there.objects()}

        assert copied(folder) == (8, 0, [])
        assert told == [(5, 8), (8, 8)]
        assert copied(folder) == (0, 0, [])
        # Another file of the same size, and a folder without a file of the first.
        assert copied(other) == (4, 1, [])
        assert contents() == {"c": b"321", "d": b"1"}
        # The same content elsewhere is not sent again; what no copy brought is told, and stays.
        shutil.copytree(other, tmp_path / "same")
        there.put_bytes("strange", b"?")
        assert copied(tmp_path / "same") == (0, 0, ["strange"])
        with pytest.raises(DtjError, match="the bucket no-such-bucket does not exist"):
            copy_folder(store.environment, folder, "s3://no-such-bucket/x")


def test_an_interrupted_copy_is_removed_by_the_next_of_another_folder(home: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_bytes(b"1")
    (tmp_path / "first/later").write_bytes(b"2")

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with open_store(home, ["datasets"]) as store:
        with pytest.raises(KeyboardInterrupt):
            copy_folder(store.environment, tmp_path / "first", "s3://datasets/set", interrupt)
        copied = copy_folder(store.environment, tmp_path / "second", "s3://datasets/set")
        assert (copied.removed, copied.others) == (1, [])
        assert [item.key for item in open_prefix("s3://datasets/set", store.environment).objects()] == [
            "second"
        ]


def test_a_job_whose_data_is_nowhere_is_refused_at_once(home: Path, tmp_path: Path) -> None:
    wanted = job(artifacts={"uri": "s3://training/jobs"}, data={"uri": "s3://datasets/set"})
    with (
        pytest.raises(Unusable, match=r"data\.uri s3://datasets/set has no files in the embedded store"),
        chosen_store(wanted, S3Store.EMBEDDED, home, None, print),
    ):
        pass
    notes: list[str] = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_bytes(b"1")
        with chosen_store(wanted, S3Store.EMBEDDED, home, tmp_path / name, notes.append):
            pass
    with chosen_store(wanted, S3Store.EMBEDDED, home, None, notes.append):
        pass
    uri = "s3://datasets/set in the embedded store"
    assert notes == [
        f"{tmp_path / 'first'} was uploaded to {uri} (0.0 MB)",
        f"1 file of an earlier --data was removed from {uri}",
        f"{tmp_path / 'second'} was uploaded to {uri} (0.0 MB)",
    ]
