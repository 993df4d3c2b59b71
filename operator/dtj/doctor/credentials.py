"""The Secret with which a job's pods reach their bucket."""

from __future__ import annotations

from dtj.api.job import Job
from dtj.doctor.check import Check, failed, ok, warning
from dtj.doctor.findings import JobFindings, Unread

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_REGION = "AWS_REGION"


def secret_checks(job: Job, found: JobFindings) -> list[Check]:
    """Whether the Secret is there, with what pods need of it; nothing for a job without artifacts."""
    artifacts = job.spec.artifacts
    if artifacts is None:
        return []
    name = artifacts.secret_name
    if name is None:
        return [ok("Secret", "the job names none: its pods reach S3 by their service account")]
    if isinstance(found.secret, Unread):
        return [warning("Secret", f"{name} can't be looked at: {found.secret.reason}")]
    make = f"kubectl -n {job.namespace} create secret generic {name}" + "".join(
        f" --from-literal={key}=…" for key in _KEYS
    )
    if found.secret is None:
        return [failed("Secret", f"there is no Secret {name} in namespace {job.namespace}", make)]
    missing = [key for key in _KEYS if key not in found.secret.keys]
    if missing:
        return [failed("Secret", f"{name} lacks {' and '.join(missing)}", f"delete it and `{make}`")]
    padded = [key for key in _KEYS if key in found.secret.padded]
    if padded:
        return [
            failed(
                "Secret",
                f"{name}: white space is at an end of {' and '.join(padded)}, as `echo` adds it",
                f"delete it and `{make}`",
            )
        ]
    set_elsewhere = {variable.name for variable in job.spec.env}
    if not artifacts.endpoint and _REGION not in found.secret.keys | set_elsewhere:
        return [warning("Secret", f"{name} has no {_REGION}", "add it, unless the bucket is in us-east-1")]
    return [ok("Secret", f"{name} has {' and '.join(_KEYS)}")]
