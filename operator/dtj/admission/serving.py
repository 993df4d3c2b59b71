"""What the webhook's server shows its clients: a certificate that may change while it runs."""

from __future__ import annotations

import os
import ssl
from datetime import datetime

from prometheus_client import CollectorRegistry, Gauge

from dtj.admission.certificates import Pair, expiry


class Unusable(ValueError):
    """A certificate and a key with which nothing can be served."""


class Serving:
    """The certificate in use; handshakes fail while there is none."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.context = _context()
        self._pair: Pair | None = None
        self._expiry = Gauge(
            "dtj_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate that the admission webhook serves expires; 0: it has none.",
            registry=registry,
        )

    def use(self, pair: Pair) -> None:
        """Serve this one from the next handshake on. Raises Unusable, and then goes on with the one before."""
        if pair == self._pair:
            return
        _load(_context(), pair)
        _load(self.context, pair)
        self._pair = pair
        self._expiry.set(expiry(pair).timestamp())

    def valid(self, now: datetime) -> bool:
        """Whether there is one that has not expired."""
        return self._pair is not None and now < expiry(self._pair)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    # OpenSSL reads files; this one is of memory alone, so that no key comes on a disk.
    file = os.memfd_create("webhook-certificate")
    try:
        os.write(file, pair.key.rstrip() + b"\n" + pair.certificate)
        # The password: none is asked for at a terminal.
        context.load_cert_chain(f"/proc/self/fd/{file}", password=b"")
    except (ssl.SSLError, OSError) as error:
        raise Unusable(f"the certificate and its key can't be served: {error}") from None
    finally:
        os.close(file)
