"""Objects that went unseen, and the view that shows them no more."""

from __future__ import annotations

from collections.abc import Set
from types import SimpleNamespace

from dtj.reconcile.ghosts import lay_ghosts
from dtj.reconcile.view import Key

A, B = ("ml", "a"), ("ml", "b")


async def test_what_the_server_does_not_list_is_hidden_until_it_does_and_its_job_is_told_each_time() -> None:
    view = SimpleNamespace(hidden={}, known=lambda: {"Pod": {"1": A, "2": B}, "Service": {}})
    told: list[Key] = []
    asked: list[str] = []
    listed: Set[str] = {"2"}

    async def there(kind: str) -> Set[str]:
        asked.append(kind)
        return listed

    for _ in range(2):
        await lay_ghosts(view, there, told.append)
        assert view.hidden["Pod"] == {"1"}
    assert told == [A]
    listed = {"1", "2"}
    await lay_ghosts(view, there, told.append)

    assert view.hidden["Pod"] == set()
    assert told == [A, A]
    assert set(asked) == {"Pod"}
