"""The certificate of the webhook's server, which may change while the server runs."""

from __future__ import annotations

import os
import ssl
from datetime import datetime

from prometheus_client import CollectorRegistry, Gauge

from dtj.admission.certificates import Pair, expiry


class Unusable(ValueError):
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
        """Serve a certificate from the next handshake on. On Unusable, the previous certificate stays."""
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
        raise Unusable(f"the certificate and its key can't be served: {error}") from None
    finally:
        os.close(file)
