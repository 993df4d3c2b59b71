"""Where a program's cache of blocks is: by its options, or by the job's spec.data.cache."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from dtj_trainer.data.cache import BlockCache
from dtj_trainer.data.errors import DataError
from dtj_trainer.train import options
from dtj_trainer.train.options import DataOptions, add_data

JOB = {"DTJ_DATA_CACHE": "/dtj/data-cache", "DTJ_DATA_CACHE_BYTES": "2147483648"}


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the folder and the limit of the cache with which options read their data, in this environment."""
    made: list[tuple[Path, int]] = []
    read: list[Any] = []
    monkeypatch.setattr(options, "BlockCache", lambda *given: made.append(given) or BlockCache(*given))
    monkeypatch.setattr(options, "load_pictures", lambda *_, cache, **__: read.append(cache))

    def of(*words: str, **environment: str) -> tuple[str, int] | None:
        made.clear()
        read.clear()
        for name in JOB:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        parser = argparse.ArgumentParser()
        add_data(parser)
        DataOptions(**vars(parser.parse_args(["--data=s3://datasets/fruits", *words]))).load()
        assert len(read) == 1
        assert (read[0] is not None) is bool(made)
        return (str(made[0][0]), made[0][1]) if made else None

    return of


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        ([], {}, None),
        ([], JOB, ("/dtj/data-cache", 2**31)),
        (["--data-cache=/mine"], {}, ("/mine", 100 * 10**9)),
        (["--data-cache=/mine"], JOB, ("/mine", 100 * 10**9)),
        (["--data-cache=/mine", "--data-cache-gigabytes=0.5"], JOB, ("/mine", 5 * 10**8)),
        (["--data-cache-gigabytes=0.5"], JOB, ("/dtj/data-cache", 5 * 10**8)),
        (["--data-cache-gigabytes=0.5"], {}, None),
        (["--data-cache="], JOB, None),
        ([], {"DTJ_DATA_CACHE": "/dtj/data-cache"}, ("/dtj/data-cache", 100 * 10**9)),
    ],
)
def test_options_come_before_the_jobs_cache(
    cache: Any, words: list[str], environment: dict[str, str], expected: tuple[str, int] | None
) -> None:
    assert cache(*words, **environment) == expected


@pytest.mark.parametrize("size", ["", "0", "10Gi", "-1"])
def test_a_size_that_is_none_is_told(cache: Any, size: str) -> None:
    with pytest.raises(DataError, match=f"DTJ_DATA_CACHE_BYTES must be a number of bytes, got '{size}'"):
        cache(**JOB | {"DTJ_DATA_CACHE_BYTES": size})
