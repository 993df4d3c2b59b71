"""The certificate authority of the cluster, a certificate for each identity, and the kubeconfigs."""

from __future__ import annotations

import datetime
import ipaddress
from typing import TYPE_CHECKING

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.cluster.local.layout import ADDRESS, API, API_SERVICE, DOMAIN, Node
from tests.cluster.local.paths import ADMIN_KUBECONFIG, KUBECONFIGS, PKI

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CA = PKI / "ca.crt"
CA_KEY = PKI / "ca.key"
SERVICE_ACCOUNT_KEY = PKI / "service-account.key"
SERVICE_ACCOUNT_PUBLIC = PKI / "service-account.pub"
DAYS = 3650
# name of the kubeconfig -> common name, organisation (the group)
CLIENTS = {
    "admin": ("dtj-cluster-admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "dns": ("dtj-cluster-dns", ""),
}


def certificate(name: str) -> Path:
    """The certificate of `name`."""
    return PKI / f"{name}.crt"


def key(name: str) -> Path:
    """The private key of `name`."""
    return PKI / f"{name}.key"


def kubeconfig(name: str) -> Path:
    """The kubeconfig of `name`."""
    return KUBECONFIGS / f"{name}.yaml"


def make(nodes: Sequence[Node]) -> None:
    """Make all that is missing. A half-made set is made anew: the admin's kubeconfig is written last."""
    if ADMIN_KUBECONFIG.exists():
        return
    for folder in (PKI, KUBECONFIGS):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = _make_authority()
    _make_service_account_key()
    authority.issue("etcd", "etcd", names=[ADDRESS])
    authority.issue("etcd-client", "kube-apiserver")
    service = "kubernetes.default.svc"
    authority.issue(
        "apiserver",
        "kube-apiserver",
        names=[ADDRESS, API_SERVICE, "kubernetes", "kubernetes.default", service, f"{service}.{DOMAIN}"],
    )
    authority.issue("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
    for node in nodes:
        authority.issue(f"kubelet-{node.name}-server", node.name, names=[node.address, node.name])
        authority.issue(f"kubelet-{node.name}", f"system:node:{node.name}", "system:nodes")
        _write_kubeconfig(f"kubelet-{node.name}")
    for name, (common_name, organisation) in CLIENTS.items():
        authority.issue(name, common_name, organisation)
    for name in sorted(CLIENTS, key="admin".__eq__):
        _write_kubeconfig(name)


class _Authority:
    def __init__(self, private: ec.EllipticCurvePrivateKey, own: x509.Certificate) -> None:
        self.private = private
        self.own = own

    def issue(self, name: str, common_name: str, organisation: str = "", names: Sequence[str] = ()) -> None:
        """A client's certificate; with `names`, a server's as well."""
        private = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if names else [])]
        builder = (
            _builder(_name(common_name, organisation), self.own.subject)
            .public_key(private.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(one) for one in names]), critical=False
            )
        _write_key(key(name), private)
        certificate(name).write_bytes(
            builder.sign(self.private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )


def _make_authority() -> _Authority:
    private = ec.generate_private_key(ec.SECP256R1())
    subject = _name("dtj-cluster")
    own = (
        _builder(subject, subject)
        .public_key(private.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    _write_key(CA_KEY, private)
    CA.write_bytes(own.public_bytes(serialization.Encoding.PEM))
    return _Authority(private, own)


def _make_service_account_key() -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    _write_key(SERVICE_ACCOUNT_KEY, private)
    SERVICE_ACCOUNT_PUBLIC.write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


def _builder(subject: x509.Name, issuer: x509.Name) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _name(common_name: str, organisation: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organisation:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(attributes)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_key(path: Path, private: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )


def _write_kubeconfig(name: str) -> None:
    cluster = {"server": API, "certificate-authority": str(CA)}
    user = {"client-certificate": str(certificate(name)), "client-key": str(key(name))}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "dtj-local", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "dtj-local", "context": {"cluster": "dtj-local", "user": name}}],
        "current-context": "dtj-local",
    }
    path = kubeconfig(name)
    temporary = path.with_suffix(".new")
    temporary.touch(mode=0o600)
    temporary.write_text(yaml.safe_dump(document))
    temporary.rename(path)
