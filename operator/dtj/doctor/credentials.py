"""Check the Secret with the credentials for the bucket of a job."""

from __future__ import annotations

from dtj.api.job import Job
from dtj.doctor.check import Check, failed, ok, warning
from dtj.doctor.findings import JobFindings, Unread

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_REGION = "AWS_REGION"


def secret_checks(job: Job, findings: JobFindings) -> list[Check]:
    """Check that the Secret exists and has the keys that pods need. A job without artifacts needs no check."""
    artifacts = job.spec.artifacts
    if artifacts is None:
        return []
    name = artifacts.secret_name
    if name is None:
        return [ok("Secret", "the job names no Secret: its pods use their service account for S3")]
    if isinstance(findings.secret, Unread):
        return [warning("Secret", f"{name} can't be read: {findings.secret.reason}")]
    create = f"kubectl -n {job.namespace} create secret generic {name}" + "".join(
        f" --from-literal={key}=…" for key in _KEYS
    )
    if findings.secret is None:
        return [failed("Secret", f"there is no Secret {name} in namespace {job.namespace}", create)]
    missing = [key for key in _KEYS if key not in findings.secret.keys]
    if missing:
        return [failed("Secret", f"{name} lacks {' and '.join(missing)}", f"delete {name} and `{create}`")]
    padded = [key for key in _KEYS if key in findings.secret.padded]
    if padded:
        return [
            failed(
                "Secret",
                f"{name}: {' and '.join(padded)} begins or ends with white space, which `echo` may have added",
                f"delete {name} and `{create}`",
            )
        ]
    set_elsewhere = {variable.name for variable in job.spec.env}
    if not artifacts.endpoint and _REGION not in findings.secret.keys | set_elsewhere:
        return [
            warning("Secret", f"{name} has no {_REGION}", f"add {_REGION}, unless the bucket is in us-east-1")
        ]
    return [ok("Secret", f"{name} has {' and '.join(_KEYS)}")]
