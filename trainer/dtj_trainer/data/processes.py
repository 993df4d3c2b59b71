"""Does independent pieces of work in processes of their own."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Piece = TypeVar("Piece", contravariant=True)
Result = TypeVar("Result", covariant=True)
P = TypeVar("P")
R = TypeVar("R")


class PieceWork(Protocol[Piece, Result]):
    """What is common to all pieces. A process receives it once, by pickle."""

    def do(self, piece: Piece, /) -> Result:
        """Do one piece."""


_work: list[Any] = []
"""The work of this process, if it belongs to a pool."""


def in_processes(work: PieceWork[P, R], pieces: Sequence[P], processes: int) -> Iterator[tuple[P, R]]:
    """Yield pieces with their results, in the order in which they are finished.

    An error of a piece is raised here, and cancels the pieces that have not begun yet. With one piece, or one
    process, the calling process does the work.
    """
    if min(processes, len(pieces)) <= 1:
        yield from ((piece, work.do(piece)) for piece in pieces)
        return
    # Do not fork: a fork would copy locks that other threads of this process hold.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(work,)) as pool:
        futures = {pool.submit(_do, piece): piece for piece in pieces}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _begin(work: object) -> None:
    _work[:] = [work]


def _do(piece: Any) -> Any:
    return _work[0].do(piece)
