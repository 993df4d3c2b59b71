"""Requests in parallel: each batch is larger than the last, until a request fails, as client-go's slowStartBatch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

MOST_AT_ONCE = 16
T = TypeVar("T")


async def slow_start(
    do: Callable[[T], Awaitable[None]], items: Sequence[T], most: Callable[[], int] = lambda: MOST_AT_ONCE
) -> None:
    """Call `do` for 1, 2, 4, … items at a time.

    After a batch with a failure, no other batch begins, so that a quota does not refuse thousands of requests.

    most: returns the largest size of a batch; called before each batch.

    Raises the exception of the first item that failed in the batch.
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
