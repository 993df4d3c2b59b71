"""The source of the webhook's certificate: the operator's own Secret, or a folder that another program fills."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from dtj.admission.certificates import Pair, is_due, issue, read_certificates, why_unfit
from dtj.admission.serving import Serving, Unusable
from dtj.api.job import Manifest
from dtj.cluster.port import ApiError

_log = logging.getLogger(__name__)
_CERTIFICATE, _KEY, _AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
_ATTEMPTS = 3


class Objects(Protocol):
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
        """Check the certificate once; the caller repeats the check. Raises ApiError and Unusable."""


class FolderKeeper:
    """Serves the certificate in a folder, for example a mounted Secret of cert-manager."""

    def __init__(self, folder: Path, serving: Serving) -> None:
        self._folder = folder
        self._serving = serving

    async def look(self) -> None:
        """Serve the current certificate in the folder. Raises Unusable."""
        try:
            certificate = (self._folder / _CERTIFICATE).read_bytes()
            key = (self._folder / _KEY).read_bytes()
        except OSError as error:
            raise Unusable(f"the certificate can't be read: {error}") from None
        if not read_certificates(certificate):
            raise Unusable(f"{self._folder / _CERTIFICATE} does not contain a certificate")
        self._serving.use(Pair(certificate, key))


class SecretKeeper:
    """Issues certificates, stores them in a Secret, and adds their CAs to the ValidatingWebhookConfiguration.

    Every replica of the operator has a keeper. If two keepers write at the same time, the API server refuses one of
    the writes, and the refused keeper reads the Secret again.
    """

    def __init__(
        self,
        objects: Objects,
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
        # API servers read the configuration with a delay. Serve a valid certificate until the check after the write.
        before, self._trusted = self._trusted, pair.authorities
        if await self._trust(pair.authorities) and before == pair.authorities:
            self._serving.use(pair)

    async def _stored(self) -> Pair:
        """Return the certificate in the Secret. Replace a certificate that is unfit or due for renewal."""
        for _ in range(_ATTEMPTS):
            secret = await self._objects.get(self._secret)
            pair, now = _pair(secret or {}), self._now()
            unfit = why_unfit(pair, self._host, now)
            if not unfit and not is_due(pair, now):
                return pair
            # If the Secret is lost, clients still trust the certificate that the server serves.
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
                "the webhook has a new certificate: %s",
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
