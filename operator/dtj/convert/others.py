"""Objects that are not converted: for messages, their kinds and, for other kinds of jobs, the way to a job of dtj."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dtj.api.job import Manifest
from dtj.api.pod_template import list_of, object_of
from dtj.api.shown import enumerated, key_shown
from dtj.convert.job import is_job

_NEW = "dtj new NAME --strategy TorchDistributed --image IMAGE --command COMMAND --workers N"
_OF_PODS = f"write a job with the image and the command of its pods: {_NEW}"
_WAYS = {
    "jobset.x-k8s.io JobSet": f"convert the TrainJob that made it, or {_OF_PODS}",
    "batch Job": f"{_OF_PODS}; PET_NODE_RANK has the index of a worker",
    "workload.codeflare.dev AppWrapper": "convert what it wraps, from a file of its own",
    "ray.io RayJob": f"write the function that Ray runs on each worker as a script, and a job for the script: {_NEW}",
}
"""The way from a job, by API group and kind."""


def ways(manifests: Sequence[Manifest]) -> dict[str, str | None]:
    """Return the kinds of the objects, each with what makes a job of dtj of it; None where no way is known."""
    return {_kind(manifest): _way(manifest) for manifest in manifests}


def _kind(manifest: Manifest) -> str:
    if not manifest.get("kind"):
        return "an object without kind"
    kind = f"{key_shown(manifest.get('apiVersion'))} {key_shown(manifest['kind'])}"
    return f"{kind} (Indexed)" if _is_indexed(manifest) else kind


def _way(manifest: Manifest) -> str | None:
    kind = f"{str(manifest.get('apiVersion')).partition('/')[0]} {manifest.get('kind')}"
    if kind == "batch Job" and not _is_indexed(manifest):
        return None
    way, wrapped = _WAYS.get(kind), [*_wrapped(manifest)]
    return f"{way}: {enumerated(wrapped, 'and')}" if way and wrapped else way


def _is_indexed(manifest: Manifest) -> bool:
    return object_of(manifest.get("spec")).get("completionMode") == "Indexed"


def _wrapped(manifest: Manifest) -> Iterator[str]:
    """Yield the jobs in an AppWrapper that dtj converts."""
    for index, component in enumerate(list_of(object_of(manifest.get("spec")).get("components"))):
        template = object_of(object_of(component).get("template"))
        if is_job(template):
            yield f"the {key_shown(template['kind'])} in spec.components[{index}].template"
