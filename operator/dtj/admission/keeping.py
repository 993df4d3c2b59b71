"""Where the webhook's certificate comes from: the operator's own Secret, or a folder that somebody else fills."""

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
    """The requests that are made. Each raises ApiError."""

    async def get(self, manifest: Manifest) -> Manifest | None:
        """The object of the same kind, namespace and name, if there is one."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Make an object; 409 when one of that name is there."""

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object; 409 when it is not at the manifest's resourceVersion any more."""


class Keeper(Protocol):
    """Sees to it that a certificate that clients trust is served."""

    async def look(self) -> None:
        """Once, to be repeated. Raises ApiError and Unusable."""


class FolderKeeper:
    """Serves what lies in a folder, as a mounted Secret of cert-manager's."""

    def __init__(self, folder: Path, serving: Serving) -> None:
        self._folder = folder
        self._serving = serving

    async def look(self) -> None:
        """Serve what lies there now."""
        try:
            certificate = (self._folder / _CERTIFICATE).read_bytes()
            key = (self._folder / _KEY).read_bytes()
        except OSError as error:
            raise Unusable(f"the certificate can't be read: {error}") from None
        if not read_certificates(certificate):
            raise Unusable(f"{self._folder / _CERTIFICATE} is no certificate")
        self._serving.use(Pair(certificate, key))


class SecretKeeper:
    """Makes certificates, keeps them in a Secret, and has the API server trust them.

    Every replica does; of two that write at once, the API server refuses one, which then reads what the other wrote.
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
        """name: of the Service, the Secret and the ValidatingWebhookConfiguration; the first two of namespace."""
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
        """The CAs that the last look had the API server trust."""

    async def look(self) -> None:
        """Renew what is to be renewed, repair what is wrong, and serve what the API server trusts."""
        pair = await self._stored()
        if not self._serving.valid(self._now()):
            self._serving.use(pair)
        # API servers take a moment to see whom to trust: what is valid is served until the look after that.
        before, self._trusted = self._trusted, pair.authorities
        if await self._trust(pair.authorities) and before == pair.authorities:
            self._serving.use(pair)

    async def _stored(self) -> Pair:
        """The certificate of the Secret; a new one where that is due or unfit."""
        for _ in range(_ATTEMPTS):
            secret = await self._objects.get(self._secret)
            pair, now = _pair(secret or {}), self._now()
            unfit = why_unfit(pair, self._host, now)
            if not unfit and not is_due(pair, now):
                return pair
            # Where the Secret is lost, what is served so far is trusted on.
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
                "the webhook has a new certificate: %s", unfit or "half of the old one's life has passed"
            )
            return new
        raise ApiError(409, "Conflict", f"the Secret changed {_ATTEMPTS} times while it was to be written")

    async def _trust(self, authorities: bytes) -> bool:
        """Whether the API server has been told to trust these CAs; it is from now on."""
        configuration = await self._objects.get(self._configuration)
        if configuration is None:
            raise ApiError(
                404, "NotFound", "there is no ValidatingWebhookConfiguration of the webhook's name"
            )
        bundle = base64.b64encode(authorities).decode()
        wrong = [
            webhook["clientConfig"]
            for webhook in configuration.get("webhooks") or []
            if webhook["clientConfig"].get("caBundle") != bundle
        ]
        if not wrong:
            return True
        for client in wrong:
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
