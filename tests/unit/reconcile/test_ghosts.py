"""Jobs that went unseen, and the view that shows them no more."""

from __future__ import annotations

from collections.abc import Set
from types import SimpleNamespace

from dtj.reconcile.ghosts import lay_ghosts
from dtj.reconcile.view import Key

A, B = ("ml", "a"), ("ml", "b")


async def test_what_the_server_does_not_list_is_hidden_until_it_does_and_its_job_is_told_each_time() -> None:
    view = SimpleNamespace(hidden=frozenset(), known=lambda: {"1": A, "2": B})
    told: list[Key] = []
    listed: Set[str] = {"2"}

    async def there() -> Set[str]:
        return listed

    for _ in range(2):
        await lay_ghosts(view, there, told.append)
        assert view.hidden == {"1"}
    assert told == [A]
    listed = {"1", "2"}
    await lay_ghosts(view, there, told.append)

    assert view.hidden == set()
    assert told == [A, A]


async def test_nothing_is_asked_where_no_job_is_known() -> None:
    async def never() -> Set[str]:
        raise AssertionError("asked")

    await lay_ghosts(SimpleNamespace(hidden=frozenset(), known=dict), never, lambda key: None)
