"""Requests in parallel: more and more at a time, until the first one that fails, as client-go's slowStartBatch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

MOST_AT_ONCE = 16
T = TypeVar("T")


async def slow_start(
    do: Callable[[T], Awaitable[None]], items: Sequence[T], most: Callable[[], int] = lambda: MOST_AT_ONCE
) -> None:
    """Do it for 1, 2, 4, … items at a time, and for no more than `most`, which is asked before each batch.

    After a batch in which one fails, no other begins: what a quota refuses is not tried thousands of times. Raises
    what the first item of that batch that failed raised.
    """
    begin, size = 0, 1
    while begin < len(items):
        size = min(size, most())
        batch = items[begin : begin + size]
        if len(batch) == 1:
            await do(batch[0])
        else:
            results = await asyncio.gather(*map(do, batch), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        begin, size = begin + size, 2 * size
