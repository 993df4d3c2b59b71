"""The admission webhook of one operator process: its server and its certificate, which may change while it runs.

`dtj.process` runs it; a process without the Lease answers requests as well. The certificate comes from the operator's
own Secret, or from a folder that another program such as cert-manager keeps. `certificates` issues it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Gauge

from dtj.admission.certificates import Pair, expiry, is_due, issue, read_certificates, why_unfit
from dtj.admission.server import WebhookServer
from dtj.api.job import Manifest
from dtj.cluster.api import connect
from dtj.cluster.interface import ApiError
from dtj.cluster.server_clock import ServerClock


class UnusableCertificate(ValueError):
    """A server cannot use the certificate or the key."""


class Serving:
    """The certificate in use. Handshakes fail until the first certificate is set."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.context = _context()
        self._pair: Pair | None = None
        self._expiry = Gauge(
            "dtj_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate of the admission webhook expires; 0 while the webhook has no certificate.",
            registry=registry,
        )

    def use(self, pair: Pair) -> None:
        """Serve a certificate from the next handshake on. On UnusableCertificate, the previous certificate stays."""
        if pair == self._pair:
            return
        _load(_context(), pair)
        _load(self.context, pair)
        self._pair = pair
        self._expiry.set(expiry(pair).timestamp())

    def valid(self, now: datetime) -> bool:
        """Return whether an unexpired certificate is set."""
        return self._pair is not None and now < expiry(self._pair)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    # OpenSSL reads only files. A file in memory keeps the key off the disk.
    file = os.memfd_create("webhook-certificate")
    try:
        os.write(file, pair.key.rstrip() + b"\n" + pair.certificate)
        # An empty password keeps OpenSSL from asking for one at the terminal.
        context.load_cert_chain(f"/proc/self/fd/{file}", password=b"")
    except (ssl.SSLError, OSError) as error:
        raise UnusableCertificate(f"the certificate and its key can't be served: {error}") from None
    finally:
        os.close(file)


_log = logging.getLogger(__name__)
_CERTIFICATE, _KEY, _AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
_ATTEMPTS = 3


class KeeperRequests(Protocol):
    """The API requests of a keeper. Every method raises ApiError."""

    async def get(self, manifest: Manifest) -> Manifest | None:
        """Return the object with the manifest's kind, namespace and name, or None."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object. The error has status 409 if an object of the same name exists."""

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object. The error has status 409 if the object has another resourceVersion than the manifest."""


class Keeper(Protocol):
    """Ensures that the server serves a certificate that its clients trust."""

    async def look(self) -> None:
        """Check the certificate once; the caller repeats the check. Raises ApiError and UnusableCertificate."""


class FolderKeeper:
    """Serves the certificate in a folder, for example a mounted Secret of cert-manager."""

    def __init__(self, folder: Path, serving: Serving) -> None:
        self._folder = folder
        self._serving = serving

    async def look(self) -> None:
        """Serve the current certificate in the folder. Raises UnusableCertificate."""
        try:
            certificate = (self._folder / _CERTIFICATE).read_bytes()
            key = (self._folder / _KEY).read_bytes()
        except OSError as error:
            raise UnusableCertificate(f"the certificate can't be read: {error}") from None
        if not read_certificates(certificate):
            raise UnusableCertificate(f"{self._folder / _CERTIFICATE} does not contain a certificate")
        self._serving.use(Pair(certificate, key))


class SecretKeeper:
    """Issues certificates, stores them in a Secret, and adds their CAs to the ValidatingWebhookConfiguration.

    Every replica of the operator has a keeper. If two keepers write at the same time, the API server refuses one of
    the writes, and the refused keeper reads the Secret again.
    """

    def __init__(
        self,
        objects: KeeperRequests,
        namespace: str,
        name: str,
        validity: timedelta,
        serving: Serving,
        now: Callable[[], datetime],
    ) -> None:
        """Store the settings.

        name: name of the Service, the Secret and the ValidatingWebhookConfiguration. namespace: namespace of the
        Service and the Secret. validity: validity of each new certificate. now: returns the time of the API server.
        """
        self._objects = objects
        self._secret: Manifest = {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
        }  # fmt: skip
        self._configuration: Manifest = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name},
        }
        self._host = f"{name}.{namespace}.svc"
        self._validity = validity
        self._serving = serving
        self._now = now
        self._trusted = b""
        """The CAs that the last check wrote to the ValidatingWebhookConfiguration."""

    async def look(self) -> None:
        """Renew a certificate that is due, replace an unfit one, and serve one that the API server trusts."""
        pair = await self._stored()
        if not self._serving.valid(self._now()):
            self._serving.use(pair)
        # API servers notice new CAs with a delay. Serve a new certificate only from the next check on, after the CAs
        # were written; until then serve the old certificate if it is valid.
        before, self._trusted = self._trusted, pair.authorities
        if await self._trust(pair.authorities) and before == pair.authorities:
            self._serving.use(pair)

    async def _stored(self) -> Pair:
        """Return the certificate in the Secret. Replace a certificate that is unusable or due for renewal."""
        for _ in range(_ATTEMPTS):
            secret = await self._objects.get(self._secret)
            pair, now = _pair(secret or {}), self._now()
            unfit = why_unfit(pair, self._host, now)
            if not unfit and not is_due(pair, now):
                return pair
            # If the Secret was deleted, keep the CAs that API servers trust now: the server still serves an old
            # certificate.
            earlier = pair.authorities if read_certificates(pair.authorities) else self._trusted
            new = issue(self._host, now, self._validity, earlier)
            try:
                if secret is None:
                    await self._objects.create(self._secret | {"type": "Opaque", "data": _data(new)})
                else:
                    await self._objects.replace(secret | {"data": _data(new)})
            except ApiError as error:
                if error.status != 409:
                    raise
                continue
            _log.info(
                "the operator issued a new certificate for the webhook, because %s",
                unfit or "half of the old certificate's validity has passed",
            )
            return new
        raise ApiError(
            409,
            "Conflict",
            f"the Secret changed during each of {_ATTEMPTS} attempts to write the certificate",
        )

    async def _trust(self, authorities: bytes) -> bool:
        """Write the CAs to the configuration. Return whether the configuration already had these CAs."""
        configuration = await self._objects.get(self._configuration)
        if configuration is None:
            raise ApiError(
                404,
                "NotFound",
                f"there is no ValidatingWebhookConfiguration {self._configuration['metadata']['name']}",
            )
        bundle = base64.b64encode(authorities).decode()
        outdated = [
            webhook["clientConfig"]
            for webhook in configuration.get("webhooks") or []
            if webhook["clientConfig"].get("caBundle") != bundle
        ]
        if not outdated:
            return True
        for client in outdated:
            client["caBundle"] = bundle
        await self._objects.replace(configuration)
        return False


def _pair(secret: Manifest) -> Pair:
    data: Any = secret.get("data") or {}
    return Pair(*(_decoded(data.get(key) or "") for key in (_CERTIFICATE, _KEY, _AUTHORITIES)))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return b""


def _data(pair: Pair) -> dict[str, str]:
    parts = {_CERTIFICATE: pair.certificate, _KEY: pair.key, _AUTHORITIES: pair.authorities}
    return {key: base64.b64encode(value).decode() for key, value in parts.items()}


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
    serving, server = Serving(registry), WebhookServer(registry, webhook.host_paths)
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
    # Open a connection for the webhook alone: the leader's connection refuses writes while another process leads.
    objects = await connect(clock=clock)
    stack.push_async_callback(objects.close)
    keeper = SecretKeeper(objects, webhook.namespace, webhook.name, webhook.validity, serving, clock.now)
    return keeper, min(_CHECK_SECONDS, webhook.validity.total_seconds() / _CHECKS_IN_A_VALIDITY)


async def _keep(keeper: Keeper, pause: float) -> None:
    last_warning = ""
    while True:
        try:
            await keeper.look()
        except (ApiError, UnusableCertificate) as error:
            if str(error) != last_warning:
                last_warning = str(error)
                _log.warning("the webhook's certificate can't be checked or renewed: %s", last_warning)
        except Exception:  # noqa: BLE001 - jobs run without a webhook
            _log.exception("an unexpected error kept the webhook's certificate from being checked or renewed")
        else:
            last_warning = ""
        await asyncio.sleep(pause)
