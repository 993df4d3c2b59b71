"""Requests of an API server to the admission webhook."""

from __future__ import annotations

import copy
from typing import Any

from dtj.api.identity import GROUP, KIND, VERSION
from dtj.api.job import Manifest
from tests.unit.support.jobs import manifest

WRONG: Manifest = {"env": [{"name": "1 2"}, {"name": "DTJ_JOB"}]}


def request(operation: str, job: Any, old: Any = None, **more: Any) -> Manifest:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": GROUP, "version": VERSION, "kind": KIND},
            "operation": operation,
            "name": "one",
            "namespace": "ml",
            "object": job,
            "oldObject": old,
            "dryRun": False,
            **more,
        },
    }


def job(**spec: Any) -> Manifest:
    made: Manifest = copy.deepcopy(manifest())
    made["spec"] |= copy.deepcopy(spec)
    return made
