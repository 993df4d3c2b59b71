"""An AdmissionReview and its answer. Pure.

https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#request
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dtj.api.checking import check
from dtj.api.identity import GROUP, KIND, VERSION
from dtj.api.immutable import forbidden_changes
from dtj.api.job import Fault, Manifest
from dtj.api.shown import key_shown

REVIEW_VERSION, REVIEW = "admission.k8s.io/v1", "AdmissionReview"
_OURS = {"group": GROUP, "version": VERSION, "kind": KIND}
# The status, and the fields that only the API server writes, do not count.
_AUTHORS = ("name", "namespace", "labels", "annotations")


class Malformed(ValueError):
    """The request is not an AdmissionReview."""


def review(sent: Any) -> Manifest:
    """The answer to an AdmissionReview, which may be any JSON. Raises Malformed."""
    if not isinstance(sent, dict) or (sent.get("apiVersion"), sent.get("kind")) != (REVIEW_VERSION, REVIEW):
        raise Malformed(f"send an {REVIEW} of {REVIEW_VERSION}")
    request = sent.get("request")
    if not isinstance(request, dict):
        raise Malformed("request: required, an object")
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid:
        raise Malformed("request.uid: required, a string")
    response: Manifest = {"uid": uid, "allowed": True}
    found = list(dict.fromkeys(_faults(request)))
    if found:
        response |= {"allowed": False, "status": _refusal(request["object"], found)}
    return {"apiVersion": REVIEW_VERSION, "kind": REVIEW, "response": response}


def _faults(request: Manifest) -> Iterable[Fault]:
    operation = request.get("operation")
    if request.get("kind") != _OURS or request.get("subResource") or operation not in ("CREATE", "UPDATE"):
        return ()
    job = _job(request, "object")
    if operation == "CREATE":
        return _faults_of(job)
    old = _job(request, "oldObject")
    if job.get("spec") == old.get("spec"):
        # Labels and finalizers of a job that was accepted earlier can change, whatever faults the present rules find.
        return ()
    return [*forbidden_changes(old.get("spec"), job.get("spec")), *_faults_of(job)]


def _job(request: Manifest, name: str) -> Manifest:
    job = request.get(name)
    if not isinstance(job, dict):
        raise Malformed(f"request.{name}: required, an object")
    return job


def _faults_of(job: Manifest) -> list[Fault]:
    metadata = job.get("metadata")
    if isinstance(metadata, dict):
        metadata = {key: metadata[key] for key in _AUTHORS if key in metadata}
    judged = {key: value for key, value in job.items() if key != "status"} | {"metadata": metadata}
    return check(judged)[1]


def _refusal(job: Manifest, found: list[Fault]) -> Manifest:
    """A refusal in the form that the API server uses for violations of a schema: kubectl prints each cause."""
    metadata = job.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return {
        "status": "Failure",
        "reason": "Invalid",
        "code": 422,
        "message": "; ".join(map(str, found)),
        "details": {
            "group": GROUP,
            "kind": KIND,
            "name": key_shown(name) if isinstance(name, str) else "",
            "causes": [
                {"reason": "FieldValueInvalid", "field": fault.field, "message": fault.message}
                for fault in found
            ],
        },
    }
