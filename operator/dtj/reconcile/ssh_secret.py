"""A job's ssh key, and the creation of the Secret with the key before the status has the name of the Secret."""

from __future__ import annotations

from contextlib import suppress
from secrets import token_hex

from dtj.api.job import Job, Manifest
from dtj.api.names import ssh_secret_name
from dtj.api.unreadable import AnyJob
from dtj.cluster.port import ApiError, Cluster
from dtj.plan.horovod import ssh_secret
from dtj.reconcile.refusal import Refused, Unmade, create_own, refuse

_CONFLICT = 409


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


class SshSecret:
    """Chooses the Secret's name, and creates it."""

    def __init__(self) -> None:
        self._name: str | None = None
        self.made = False
        """Whether this process has created the Secret, or seen that it exists."""

    def name(self, job: AnyJob) -> str:
        """Return the Secret's name for a job whose status has no name. Nobody can guess the name, which is random."""
        self._name = self._name or ssh_secret_name(job.name, token_hex(4))
        return self._name

    async def make_first(self, cluster: Cluster, job: AnyJob) -> bool:
        """Create the Secret before the status names the Secret. Returns whether that succeeded; raises ApiError."""
        manifest = _manifest(job)
        try:
            await cluster.create(manifest)
        except ApiError as error:
            if error.status == _CONFLICT:
                self._name = None  # The name is in use. The next pass chooses another name.
                raise
            # The action CreateSshSecret meets the same refusal and reports the refusal.
            with suppress(Refused, Unmade):
                refuse(error, manifest)
            return False
        self.made = True
        return True

    async def make(self, cluster: Cluster, job: AnyJob) -> None:
        """Create the Secret that the status names, unless it exists. Raises Refused and ApiError."""
        await create_own(cluster, _manifest(job))
        self.made = True


def _manifest(job: AnyJob) -> Manifest:
    assert isinstance(job, Job)  # Only a job with a plan gets here, and only a Job has a plan.
    return ssh_secret(job, *new_key_pair())
