"""GET /healthz of the operator's process, in a leader and in a replica that waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from dtj.reconcile.stuck import Stuck


class Health:
    """The endpoint /healthz. The answer is 500 when `check` raises Stuck."""

    def __init__(self) -> None:
        self.check: Callable[[], Mapping[str, object]] = dict
        """Returns figures of the running operator; raises Stuck. A replica that waits has no figures."""

    @asynccontextmanager
    async def served(self, port: int) -> AsyncIterator[None]:
        """Answer on this port until the block ends."""
        app = web.Application()
        app.router.add_get("/healthz", self._answer)
        runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, None, port).start()
            yield
        finally:
            await runner.cleanup()

    async def _answer(self, _: web.Request) -> web.Response:
        try:
            answer = web.json_response(dict(self.check()))
        except Stuck as stuck:
            answer = web.Response(status=500, text=f"{stuck}\n")
        # Close the connection: at its end, kopf would wait for a connection that is kept alive.
        answer.force_close()
        return answer
