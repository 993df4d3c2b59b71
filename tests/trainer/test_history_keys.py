"""The keys of the index of past jobs.

- a job comes back from its key as it was
- a listing begins with the newest job
- keys that are not of the index
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from dtj_trainer.contract.history import IndexEntry, index_key, parsed_index_key

NAMES = st.from_regex(r"[a-z0-9]([-.a-z0-9]{0,60}[a-z0-9])?", fullmatch=True)
UIDS = st.uuids().map(str) | st.from_regex(r"[a-z0-9-]{1,40}", fullmatch=True)
SECONDS = st.integers(0, 9_999_999_999)
entries = st.builds(
    IndexEntry,
    created=SECONDS.map(lambda second: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)),
    namespace=NAMES,
    name=NAMES,
    uid=UIDS,
)


@given(entries)
def test_a_job_comes_back_from_its_key(entry: IndexEntry) -> None:
    assert parsed_index_key(index_key(*entry)) == entry


@given(entries, entries)
def test_the_newer_job_comes_first(one: IndexEntry, other: IndexEntry) -> None:
    if one.created > other.created:
        assert index_key(*one) < index_key(*other)


@given(st.text() | st.from_regex(r"(_index/)?[0-9]{9,11}(_[a-z_/-]+){2,4}", fullmatch=True))
def test_whatever_is_read_as_a_key_is_the_key(text: str) -> None:
    entry = parsed_index_key(text)
    assert entry is None or index_key(*entry) == text


def test_fractions_of_a_second_are_left_out() -> None:
    time = datetime(2026, 11, 25, 17, 0, 0, 999_999, tzinfo=UTC)
    key = index_key(time, "ml", "mnist", "1a2b-3c")
    assert key == "_index/8204373999_ml_mnist_1a2b-3c"
    entry = parsed_index_key(key)
    assert entry is not None
    assert entry.created == time.replace(microsecond=0)
    assert entry.prefix == "ml/mnist-1a2b"
