"""The ssh key of a job."""

from __future__ import annotations


def new_key_pair() -> tuple[str, str]:
    """A new ed25519 key: private key and public key as OpenSSH writes them."""
    # Of the operator's packages: `dtj run` reconciles too, and needs no key.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private.decode(), public.decode()
