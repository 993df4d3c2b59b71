"""GET /healthz of the operator's process, whether it leads or waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from dtj.reconcile.stuck import Stuck


class Health:
    """What the process answers; 500 when what it runs is stuck."""

    def __init__(self) -> None:
        self.check: Callable[[], Mapping[str, float]] = dict
        """Figures of what runs; raises Stuck. Nothing runs in a replica that waits."""

    @asynccontextmanager
    async def served(self, port: int) -> AsyncIterator[None]:
        """Answer on this port for as long as the block lasts."""
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
        # kopf, when it ends, would wait for a connection that is kept.
        answer.force_close()
        return answer
