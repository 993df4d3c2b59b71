"""Certificates that the operator issues for the webhook. The functions are pure, except for random keys.

Each serving certificate has a CA of its own. The CA's key is discarded at once, so that nobody can sign another
certificate. The API server trusts the new CA and, until they expire, the earlier CAs: a replica that still serves an
older certificate stays trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = timedelta(days=90)
# Validity starts before the time of issue by this share of the validity, and by this time at most, because the clock
# of an API server may be behind.
_EARLIER, _MOST_EARLIER = 0.1, timedelta(hours=1)
# The largest number of CAs in the bundle, the newest first. Two suffice: the CA of the present certificate and the CA
# of the previous certificate. Each repair of the Secret adds a CA, which needs room, too.
_AUTHORITIES = 5


@dataclass(frozen=True)
class Pair:
    """A serving certificate, its private key, and the CAs that clients must trust, in PEM."""

    certificate: bytes
    key: bytes
    authorities: bytes = b""


def issue(host: str, now: datetime, validity: timedelta = VALIDITY, earlier: bytes = b"") -> Pair:
    """Issue a certificate for a host name, signed by a new CA. earlier: earlier CAs; unexpired ones are kept."""
    since, until = now - min(_MOST_EARLIER, validity * _EARLIER), now + validity
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dtj-operator webhook")])
    public = authority_key.public_key()
    authority = (
        _builder(name, name, public, since, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _builder(x509.Name([]), name, key.public_key(), since, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        # RFC 5280 demands that this extension is critical in a certificate without a subject.
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    unexpired = [ca for ca in read_certificates(earlier) if ca.not_valid_after_utc > now]
    return Pair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        b"".join(ca.public_bytes(Encoding.PEM) for ca in [authority, *unexpired][:_AUTHORITIES]),
    )


def why_unfit(pair: Pair, host: str, now: datetime) -> str | None:
    """Return why a client that trusts the pair's CAs rejects the certificate; None if the client accepts it."""
    certificates, authorities = read_certificates(pair.certificate), read_certificates(pair.authorities)
    if not certificates or not authorities:
        return f"the {'CA ' if certificates else ''}certificate is missing or unreadable"
    certificate = certificates[0]
    try:
        if load_pem_private_key(pair.key, None).public_key() != certificate.public_key():
            return "the key does not belong to the certificate"
        if host not in _hosts(certificate):
            return f"the certificate is not for {host}"
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension):
        return "the certificate or its key is missing or unreadable"
    if now < certificate.not_valid_before_utc:
        return "the certificate is not valid yet"
    if now >= certificate.not_valid_after_utc:
        return "the certificate has expired"
    if not any(_signed(certificate, ca) and ca.not_valid_after_utc > now for ca in authorities):
        return "no unexpired CA in the Secret has signed the certificate"
    return None


def is_due(pair: Pair, now: datetime) -> bool:
    """Return whether a valid certificate is due for renewal: half of the validity has passed."""
    certificate = read_certificates(pair.certificate)[0]
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= since + (until - since) / 2


def expiry(pair: Pair) -> datetime:
    """Return the time at which the certificate of the pair expires."""
    return read_certificates(pair.certificate)[0].not_valid_after_utc


def read_certificates(pem: bytes) -> Sequence[x509.Certificate]:
    """Parse the certificates of a PEM file. Return none if any part of the file is not a certificate."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return ()


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    since: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return names.value.get_values_for_type(x509.DNSName)


def _signed(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return True
