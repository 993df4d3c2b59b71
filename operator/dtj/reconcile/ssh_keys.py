"""The ssh key of a job."""

from __future__ import annotations


def new_key_pair() -> tuple[str, str]:
    """Create an ed25519 key. Returns the private key and the public key in the formats of OpenSSH."""
    # Import here: only the operator has the package cryptography. `dtj run` reconciles without the package and a key.
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
