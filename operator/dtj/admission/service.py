"""The admission webhook of one process of the operator, whether that leads or waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from prometheus_client import CollectorRegistry

from dtj.admission.keeping import FolderKeeper, Keeper, SecretKeeper
from dtj.admission.server import Server
from dtj.admission.serving import Serving, Unusable
from dtj.cluster.api import connect
from dtj.cluster.port import ApiError
from dtj.cluster.server_clock import ServerClock

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 15.0
_LOOKS_IN_A_LIFE = 20
# The API server may know of the process's end later than the process.
_LINGER_SECONDS = 5.0


@dataclass(frozen=True)
class Webhook:
    """Its settings, as the flags give them."""

    port: int
    name: str
    """Of the Service, the Secret and the ValidatingWebhookConfiguration."""
    namespace: str
    """Of the Service and the Secret."""
    validity: timedelta
    """How long a certificate made here is valid."""
    folder: Path | None = None
    """Where somebody else keeps the certificate; None: the operator makes it."""


@asynccontextmanager
async def admission(webhook: Webhook, registry: CollectorRegistry, clock: ServerClock) -> AsyncIterator[None]:
    """Answer the API server for as long as the block lasts, and some seconds longer unless that fails.

    clock: the API server judges the certificate by its own.
    """
    serving, server = Serving(registry), Server(registry)
    async with AsyncExitStack() as stack:
        keeper, pause = await _keeper(webhook, serving, clock, stack)
        keeping = asyncio.create_task(_keep(keeper, pause))
        stack.callback(keeping.cancel)
        await stack.enter_async_context(server.served(webhook.port, serving.context))
        yield
        await asyncio.sleep(_LINGER_SECONDS)


async def _keeper(
    webhook: Webhook, serving: Serving, clock: ServerClock, stack: AsyncExitStack
) -> tuple[Keeper, float]:
    """Who keeps the certificate, and the seconds from one look to the next."""
    if webhook.folder is not None:
        return FolderKeeper(webhook.folder, serving), _LOOK_SECONDS
    # A connection of its own, which writes also while another operator leads.
    objects = await connect(clock=clock)
    stack.push_async_callback(objects.close)
    keeper = SecretKeeper(objects, webhook.namespace, webhook.name, webhook.validity, serving, clock.now)
    return keeper, min(_LOOK_SECONDS, webhook.validity.total_seconds() / _LOOKS_IN_A_LIFE)


async def _keep(keeper: Keeper, pause: float) -> None:
    said = ""
    while True:
        try:
            await keeper.look()
        except (ApiError, Unusable) as error:
            if str(error) != said:
                said = str(error)
                _log.warning("the webhook's certificate: %s", said)
        except Exception:  # noqa: BLE001 - jobs run without a webhook
            _log.exception("the webhook's certificate")
        else:
            said = ""
        await asyncio.sleep(pause)
