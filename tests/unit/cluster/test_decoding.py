"""Lists of the API server, read piece by piece, with one large object at a time."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from dtj.api.nesting import MOST_LEVELS
from dtj.cluster.decoding import ListBody, listed

ITEMS = [
    {"metadata": {"name": "a"}, "text": '"}]{[\\', "more": "é\u2028😀"},
    {"metadata": {"name": "b"}, "numbers": [1, -2.5e10, 0], "none": None, "yes": True, "empty": [{}, []]},
    {},
]
METADATA = {"resourceVersion": "7", "continue": "on"}
LARGE = {"spec": {"tolerations": [{}] * 400_000}}


async def pieces(text: bytes, sizes: Iterable[int]) -> AsyncIterator[bytes]:
    for size in sizes:
        piece, text = text[:size], text[size:]
        if piece:
            yield piece
    if text:
        yield text


async def read(text: bytes, sizes: Iterable[int] = ()) -> tuple[list[Any], ListBody]:
    body = ListBody()
    return [item async for some in listed(pieces(text, sizes), body) for item in some], body


@pytest.mark.parametrize("ensure_ascii", [True, False])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "document",
    [
        {"kind": "List", "metadata": METADATA, "items": ITEMS},
        {"apiVersion": "v1", "items": ITEMS, "kind": "List", "metadata": METADATA, "count": 12},
        {"items": [], "metadata": METADATA},
        {"items": [1, 22, 333]},
        {"items": None, "metadata": METADATA},
        {"items": {"a": 1}},
        {"resources": [{"name": "jobs"}]},
        {},
    ],
)
async def test_a_list_is_the_same_in_whatever_pieces_it_comes(
    document: dict[str, Any], *, indent: int | None, ensure_ascii: bool
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=ensure_ascii).encode()
    rng = random.Random(7)
    for sizes in ([], [1] * len(text), *([rng.randint(1, 40) for _ in range(99)] for _ in range(20))):
        items, body = await read(text, sizes)
        assert body.has_items == isinstance(document.get("items"), list)
        assert body.fields | ({"items": items} if body.has_items else {}) == document


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "[]",
        "<html>",
        '{"items": [',
        '{"items": [{}',
        '{"a": 1',
        '{"a" 1}',
        "{} {}",
        '{"items": [1 2]}',
    ],
)
async def test_what_is_no_object_is_an_error(text: str) -> None:
    for sizes in ([], [1] * len(text)):
        with pytest.raises(ValueError, match=r"^the text "):
            await read(text.encode(), sizes)


async def test_an_item_that_is_nested_without_end_hides_no_other() -> None:
    deep = '{"a":[' * 5_000 + '"}]"' + "]}" * 5_000
    text = f'{{"items": [{{"name": "a"}}, {deep}, {{"name": "b"}}], "metadata": {{}}}}'.encode()

    for sizes in ([], [1_000] * 30):
        items, _ = await read(text, sizes)

        assert [items[0], items[2]] == [{"name": "a"}, {"name": "b"}]
        inner, levels = items[1], 0
        while inner:
            inner, levels = (inner["a"] if isinstance(inner, dict) else inner[0]), levels + 1
        assert levels == 2 * MOST_LEVELS


@pytest.mark.bound(
    "operator",
    "Who may create jobs",
    "Memory while a list is read",
    "One large object is parsed at a time",
)
async def test_of_a_list_of_large_objects_one_is_in_memory() -> None:
    count = 6
    text = json.dumps({"items": [LARGE] * count, "metadata": METADATA}, separators=(",", ":")).encode()
    found, one = 0, tracemalloc_of_one()
    tracemalloc.start()
    async for items in listed(pieces(text, [65_536] * (len(text) // 65_536)), ListBody()):
        assert len(items) == 1, "a large object comes alone"
        found += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert found == count
    assert peak < 1.5 * one, "of some 29 MB each"


async def test_of_a_large_item_what_is_seen_of_it_stays() -> None:
    text = json.dumps({"items": [{"n": 1}, LARGE, {"n": 2}, {"n": "x" * 200_000}]}).encode()
    for sizes in ([], [1_000] * 3_000):
        seen: list[Any] = []
        body = ListBody()
        items = [item async for some in listed(pieces(text, sizes), body, seen.append) for item in some]
        assert items == [{"n": 1}, None, {"n": 2}, None]
        assert (len(seen[0]["spec"]["tolerations"]), len(seen[1]["n"])) == (400_000, 200_000)


def tracemalloc_of_one() -> int:
    """The bytes of one large object."""
    text = json.dumps(LARGE)
    tracemalloc.start()
    kept = json.loads(text)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept
    return size
