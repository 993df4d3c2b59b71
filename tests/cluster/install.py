"""`python -m tests.cluster.install`: install the CRD and the operator in the cluster of KUBECONFIG."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import images
from tests.cluster.archives import images_in
from tests.cluster.progress import ClusterError, note, step
from tests.cluster.shell import run
from tests.patience import PATIENCE
from tests.unit.support.structural import matched

MANIFESTS = Path(__file__).parents[2] / "manifests"
NAMESPACE = "dtj-system"
DEPLOYMENT = "dtj-operator"
CEL_SINCE = 25
_RULES = "x-kubernetes-validations"
POLICY_V1_SINCE = 21
READY_SECONDS = 90 * PATIENCE


def install(cluster: str, image: str | None = None, only: Sequence[str] = ()) -> None:
    """Apply both and wait until the API knows the resource and the operator is available.

    Without `image`, the operator's image is the one of the local build, loaded into the cluster with the
    others, or with those of `only`.
    """
    with step("applying the CRD"):
        install_crds()
    version = None
    if image is None:
        image, version = _built_image(images.load(cluster, only))
    with step(f"installing the operator, {image}"):
        roll_out(operator_objects(image, version))


def roll_out(operator: list[dict[str, Any]]) -> None:
    """Apply the operator's objects and wait until the operator is available."""
    apply(operator)
    try:
        _kubectl(
            "rollout", "status", f"deployment/{DEPLOYMENT}", "--namespace", NAMESPACE,
            f"--timeout={READY_SECONDS}s", timeout=READY_SECONDS + 10,
        )  # fmt: skip
    except ClusterError as error:
        raise ClusterError(f"the operator doesn't become available: {error}\n{_why()}") from error


def install_crds() -> None:
    """Apply the CRDs, without what the server is too old for."""
    crds = [
        document
        for file in sorted((MANIFESTS / "crd").glob("*.yaml"))
        for document in yaml.safe_load_all(file.read_text())
        if document and document["kind"] == "CustomResourceDefinition"
    ]
    if not crds:
        raise ClusterError(f"no CRD in {MANIFESTS / 'crd'}: `make crd` writes it")
    apply([without_rules(crd) for crd in crds] if server_minor() < CEL_SINCE else crds)
    names = [f"crd/{crd['metadata']['name']}" for crd in crds]
    _kubectl(
        "wait", "--for=condition=Established", f"--timeout={30 * PATIENCE}s", *names, timeout=40 * PATIENCE
    )


def apply(documents: list[dict[str, Any]]) -> None:
    """Server-side: a CRD is too long for the annotation that client-side apply leaves."""
    text = yaml.safe_dump_all(documents)
    _kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", stdin=text, timeout=60 * PATIENCE)


def without_rules(document: Any) -> Any:
    """The document without CEL rules, which an older server refuses: with patterns in place of those for texts."""
    if isinstance(document, dict):
        made = {name: without_rules(value) for name, value in document.items() if name != _RULES}
        for rule in document.get(_RULES, ()):
            if pattern := matched(rule["rule"]):
                made["pattern"] = pattern
        return made
    return [without_rules(value) for value in document] if isinstance(document, list) else document


def server_minor() -> int:
    """Of the server's version, 1.x."""
    return int(json.loads(_kubectl("get", "--raw=/version"))["minor"].rstrip("+"))


def operator_objects(
    image: str, version: str | None = None, manifests: Path = MANIFESTS
) -> list[dict[str, Any]]:
    """What `install` applies besides the CRDs. version: a digest that makes the Deployment roll."""
    documents = list(yaml.safe_load_all(_kubectl("kustomize", manifests / "operator")))
    if server_minor() < POLICY_V1_SINCE:
        documents = [document for document in documents if document["apiVersion"] != "policy/v1"]
    for document in documents:
        if document["kind"] == "Deployment" and document["metadata"]["name"] == DEPLOYMENT:
            template = document["spec"]["template"]
            for container in template["spec"]["containers"]:
                container["image"] = image
                container["imagePullPolicy"] = "IfNotPresent"
            if version:
                # The tag stays when the image changes; this makes the Deployment roll.
                annotations = template.setdefault("metadata", {}).setdefault("annotations", {})
                annotations["dtj.dev/image-digest"] = version
            return documents
    raise ClusterError(f"{manifests / 'operator'} has no Deployment {DEPLOYMENT}")


def _built_image(archives: list[Path]) -> tuple[str, str]:
    for archive in archives:
        for tag, digest in images_in(archive).items():
            if tag.rpartition("/")[2].startswith(f"{DEPLOYMENT}:"):
                return tag, digest
    raise ClusterError(f"no archive carries an image {DEPLOYMENT}: name one by --operator-image")


def _why() -> str:
    """What a person would look at next."""
    parts = []
    for words in (
        ("get", "pods", "--output=wide"),
        ("get", "events", "--sort-by=.lastTimestamp"),
        ("logs", f"deployment/{DEPLOYMENT}", "--tail=20"),
    ):
        try:
            parts.append(_kubectl(*words, "--namespace", NAMESPACE))
        except ClusterError as error:
            parts.append(str(error))
    return "\n".join(parts)


def _kubectl(*words: str | Path, stdin: str | None = None, timeout: float = 30 * PATIENCE) -> str:
    if not os.environ.get("KUBECONFIG"):
        raise ClusterError('KUBECONFIG is not set: eval "$(make --silent cluster)"')
    return run("kubectl", *words, stdin=stdin, timeout=timeout)


def main() -> int:
    """Install, or say what keeps it from running."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", choices=("local", "kind"), default="local")
    parser.add_argument("--operator-image", help="the operator's image; by default the local build's")
    images.add_option(parser)
    parser.add_argument("--crds-only", action="store_true", help="leave the operator out")
    options = parser.parse_args()
    try:
        if options.crds_only:
            install_crds()
        else:
            install(options.cluster, options.operator_image, options.images)
    except ClusterError as error:
        note(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
