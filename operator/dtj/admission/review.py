"""The answer to an AdmissionReview, as a pure function.

https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#request
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dtj.api.identity import GROUP, KIND, VERSION
from dtj.api.immutable import forbidden_changes
from dtj.api.job import Fault, Manifest
from dtj.api.manifest_check import check
from dtj.api.shown import key_shown

REVIEW_VERSION, REVIEW = "admission.k8s.io/v1", "AdmissionReview"
_JOB_KIND = {"group": GROUP, "version": VERSION, "kind": KIND}
# The metadata that users write. The rules do not apply to the status and to fields that only the API server writes.
_USER_METADATA = ("name", "namespace", "labels", "annotations")


class Malformed(ValueError):
    """The request is not an AdmissionReview."""


def review(body: Any, host_paths: Sequence[str] = ()) -> Manifest:
    """Return the answer to an AdmissionReview. Raises Malformed.

    body: any JSON. host_paths: see `host_path_faults`.
    """
    if not isinstance(body, dict) or (body.get("apiVersion"), body.get("kind")) != (REVIEW_VERSION, REVIEW):
        raise Malformed(f"send an {REVIEW} of {REVIEW_VERSION}")
    request = body.get("request")
    if not isinstance(request, dict):
        raise Malformed("request: required, an object")
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid:
        raise Malformed("request.uid: required, a string")
    response: Manifest = {"uid": uid, "allowed": True}
    job_faults = list(dict.fromkeys(_faults(request, host_paths)))
    if job_faults:
        response |= {"allowed": False, "status": _refusal(request["object"], job_faults)}
    return {"apiVersion": REVIEW_VERSION, "kind": REVIEW, "response": response}


def _faults(request: Manifest, host_paths: Sequence[str]) -> Iterable[Fault]:
    operation = request.get("operation")
    if (
        request.get("kind") != _JOB_KIND
        or request.get("subResource")
        or operation not in ("CREATE", "UPDATE")
    ):
        return ()
    job = _job(request, "object")
    if operation == "CREATE":
        return _faults_of(job, host_paths)
    old = _job(request, "oldObject")
    if job.get("spec") == old.get("spec"):
        # Allow changes of labels and finalizers, even if the current rules find faults in the accepted spec.
        return ()
    return [*forbidden_changes(old.get("spec"), job.get("spec")), *_faults_of(job, host_paths)]


def _job(request: Manifest, name: str) -> Manifest:
    job = request.get(name)
    if not isinstance(job, dict):
        raise Malformed(f"request.{name}: required, an object")
    return job


def _faults_of(job: Manifest, host_paths: Sequence[str]) -> list[Fault]:
    metadata = job.get("metadata")
    if isinstance(metadata, dict):
        metadata = {key: metadata[key] for key in _USER_METADATA if key in metadata}
    checked = {key: value for key, value in job.items() if key != "status"} | {"metadata": metadata}
    return check(checked, host_paths)[1]


def _refusal(job: Manifest, job_faults: list[Fault]) -> Manifest:
    """Return a refusal in the API server's form for violations of a schema. kubectl prints each cause."""
    metadata = job.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return {
        "status": "Failure",
        "reason": "Invalid",
        "code": 422,
        "message": "; ".join(map(str, job_faults)),
        "details": {
            "group": GROUP,
            "kind": KIND,
            "name": key_shown(name) if isinstance(name, str) else "",
            "causes": [
                {"reason": "FieldValueInvalid", "field": fault.field, "message": fault.message}
                for fault in job_faults
            ],
        },
    }
