"""What kopf watches, how long it waits for it, and what it is kept from doing for every object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Any, cast

import kopf
from kopf._cogs.aiokits import aiotoggles
from kopf._cogs.clients import api as kopf_api

from dtj.cluster import user_agent
from dtj.cluster.decoding import decoded

# A connection may die without a sign. The API server writes a bookmark on each watch every minute, so one that says
# nothing for longer is dead; and none is trusted for ever: the server ends it in time, or else the operator does.
_CONNECT_SECONDS = 10.0
_REQUEST_SECONDS = 60.0
_SILENCE_SECONDS = 70.0
_WATCH_SECONDS = 600
_WATCH_SLACK_SECONDS = 30


# Before kopf asks again where an answer was no JSON.
_NO_JSON_SECONDS = 1.0
_KOPFS_STREAM = kopf_api.stream
_log = logging.getLogger(__name__)


class _NoDifferences(kopf.DiffBaseStorage):
    """Nobody is told of differences between an object and what it was: it is not copied for that at each event."""

    def build(
        self,
        *,
        body: kopf.Body,  # noqa: ARG002 kopf names them
        extra_fields: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:  # noqa: ARG002
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:  # noqa: ARG002
        raise AssertionError("only handlers of changes have kopf store what it has seen")


def configure(settings: kopf.OperatorSettings) -> None:
    """What kopf watches, and how long it waits for it; nothing that matters is left to its defaults."""
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDifferences()
    settings.scanning.disabled = True
    settings.watching.chunk_size = 200
    # An object's last event is kept for that long.
    settings.queueing.idle_timeout = 0.5
    settings.watching.connect_timeout = settings.networking.connect_timeout = _CONNECT_SECONDS
    settings.watching.inactivity_timeout = _SILENCE_SECONDS
    settings.watching.server_timeout = _WATCH_SECONDS
    settings.watching.client_timeout = _WATCH_SECONDS + _WATCH_SLACK_SECONDS
    settings.networking.request_timeout = _REQUEST_SECONDS


class NamedConnection(kopf.ConnectionInfo):
    """The way to the API server, with the User-Agent of the operator: kopf has no setting for that header."""

    def as_http_headers(self) -> dict[str, str]:
        """The headers of each request of kopf."""
        return {**super().as_http_headers(), "User-Agent": user_agent.OPERATOR}


class WakingAtChanges(aiotoggles.ToggleSet):
    """Wakes those who wait for the set when the set's own state changes, not at each toggle that comes or goes.

    Every object of kopf's first lists waits until all are read. kopf 1.45.2 woke all of them for each one read: seven
    seconds of processor time for 1,800 objects, and four times that for twice as many.
    """

    _off: aiotoggles.Toggle | None = None
    """One that was off when it was looked for: while it is, not all are on, and nobody has to look at thousands."""

    def is_on(self) -> bool:
        """Whether all, or any, of the toggles are on."""
        if self._fn is not all:
            return super().is_on()
        if self._off is None or self._off not in self._toggles or self._off.is_on():
            self._off = next((toggle for toggle in self._toggles if toggle.is_off()), None)
        return self._off is None

    async def make_toggle(self, val: bool = False, /, *, name: str | None = None) -> aiotoggles.Toggle:
        """One more that is waited for, on or off."""
        toggle = aiotoggles.Toggle(val, name=name, condition=self._condition)
        await self._change(lambda: self._toggles.add(toggle))
        return toggle

    async def drop_toggle(self, toggle: aiotoggles.Toggle) -> None:
        """It is waited for no more."""
        await self._change(lambda: self._toggles.discard(toggle))

    async def drop_toggles(self, toggles: Iterable[aiotoggles.Toggle]) -> None:
        """They are waited for no more."""
        await self._change(lambda: self._toggles.difference_update(toggles))

    async def _change(self, change: Callable[[], None]) -> None:
        async with self._condition:
            before = self.is_on()
            change()
            if self.is_on() != before:
                self._condition.notify_all()


class _Json:
    """In place of the module `json`, of which kopf's requests use this for the lines of a watch."""

    @staticmethod
    def loads(text: str) -> str:
        return text


async def _get(url: str, **options: Any) -> Any:
    """As kopf's own, but for objects that are nested too deeply for Python, and for answers that are no JSON."""
    while True:
        async with await kopf_api.request(method="get", url=url, **options) as response:
            text = await response.read()
        try:
            return await _object(text)
        except ValueError:
            _log.warning(
                "GET %s: the answer is no JSON of an object: %r", url, text[:100].decode(errors="replace")
            )
        await asyncio.sleep(_NO_JSON_SECONDS)


def _stream(url: str, **options: Any) -> AsyncIterator[Any]:
    """As kopf's own, which ends at a line that is no JSON: kopf then watches anew."""
    return _events(url, cast(AsyncGenerator[str, None], _KOPFS_STREAM(url=url, **options)))


async def _events(url: str, lines: AsyncGenerator[str, None]) -> AsyncIterator[Any]:
    async with aclosing(lines):
        try:
            async for line in lines:
                yield await _object(line)
        except ValueError as error:
            _log.warning("GET %s: a line of the watch is no JSON of an object: %s", url, error)
            await asyncio.sleep(_NO_JSON_SECONDS)


async def _object(text: str | bytes) -> dict[str, Any]:
    """Raises ValueError."""
    read = await decoded(text)
    if not isinstance(read, dict):
        raise ValueError("another type")
    return read


def read_whatever_is_stored() -> None:
    """Have kopf go on where Python can't read what the API server answers; kopf has no setting for it.

    By `json`, one job that is nested too deeply would hide all others from kopf, and end the operator.
    """
    vars(kopf_api).update(json=_Json, get=_get, stream=_stream)


def wake_at_changes() -> None:
    """Have kopf's operators of this process wait by `WakingAtChanges`; kopf has no setting for it."""
    vars(aiotoggles).update(ToggleSet=WakingAtChanges)
