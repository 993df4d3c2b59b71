"""The admission webhook of one operator process. A process without the Lease answers requests as well."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
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
_CHECK_SECONDS = 15.0
_CHECKS_IN_A_VALIDITY = 20
# The API server may send requests for some seconds after the process has begun to end.
_LINGER_SECONDS = 5.0


@dataclass(frozen=True)
class Webhook:
    """The settings of the webhook, from the flags."""

    port: int
    name: str
    """The name of the Service, the Secret and the ValidatingWebhookConfiguration."""
    namespace: str
    """The namespace of the Service and the Secret."""
    validity: timedelta
    """How long a certificate that the operator issues is valid."""
    folder: Path | None = None
    """The folder with the certificate of another issuer; None: the operator issues the certificate."""
    host_paths: Sequence[str] = ()
    """Folders of nodes below which jobs may cache data."""


@asynccontextmanager
async def admission(webhook: Webhook, registry: CollectorRegistry, clock: ServerClock) -> AsyncIterator[None]:
    """Answer the API server until the block ends. After a block without an exception, answer for some more seconds.

    clock: the time of the API server, by which certificates are issued and checked.
    """
    serving, server = Serving(registry), Server(registry, webhook.host_paths)
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
    """Return the keeper of the certificate, and the seconds between two checks."""
    if webhook.folder is not None:
        return FolderKeeper(webhook.folder, serving), _CHECK_SECONDS
    # The webhook needs its own connection, which may write while another process leads.
    objects = await connect(clock=clock)
    stack.push_async_callback(objects.close)
    keeper = SecretKeeper(objects, webhook.namespace, webhook.name, webhook.validity, serving, clock.now)
    return keeper, min(_CHECK_SECONDS, webhook.validity.total_seconds() / _CHECKS_IN_A_VALIDITY)


async def _keep(keeper: Keeper, pause: float) -> None:
    last_warning = ""
    while True:
        try:
            await keeper.look()
        except (ApiError, Unusable) as error:
            if str(error) != last_warning:
                last_warning = str(error)
                _log.warning("the webhook's certificate: %s", last_warning)
        except Exception:  # noqa: BLE001 - jobs run without a webhook
            _log.exception("the webhook's certificate")
        else:
            last_warning = ""
        await asyncio.sleep(pause)
