"""Transfers of small files, several at a time: the answer of the bucket takes longer than the bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from dtj_trainer.artifacts.multipart import HandedOver
from dtj_trainer.artifacts.pace import CONNECTIONS_BESIDE_PROGRAM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dtj_trainer.artifacts.pace import Pace

SMALL_BYTES = 2**20
"""Files of fewer bytes are small."""
AT_ONCE = 16

Result = TypeVar("Result")


def at_once(
    transfers: Iterable[Callable[[], Result]],
    workers: int = AT_ONCE,
    before_each: Callable[[], None] = lambda: None,
) -> Iterator[Result]:
    """Make transfers in threads; yield their results in order.

    After the first error, or when the caller stops, no other transfer begins, and those under way are waited for.
    """

    def one(transfer: Callable[[], Result]) -> Result:
        before_each()
        return transfer()

    with ThreadPoolExecutor(workers, "small file") as pool:
        try:
            for each in [pool.submit(one, transfer) for transfer in transfers]:
                yield each.result()
        finally:
            pool.shutdown(cancel_futures=True)


def upload_at_once(transfers: Iterable[Callable[[], Result]], pace: Pace, uri: str) -> list[Result]:
    """Make uploads below a URI in threads; return their results in order.

    Raises HandedOver when the program beside the uploads ends, because the threads have a low priority. Raises the
    first error of an upload.
    """
    gentle = pace.gentle

    def check() -> None:
        if gentle and not pace.gentle:
            raise HandedOver(uri)

    return [*at_once(transfers, CONNECTIONS_BESIDE_PROGRAM if gentle else AT_ONCE, check)]
