"""Releases of the chart by real Helm on the cluster under test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.chart import helm
from tests.cluster import install
from tests.cluster.jobs import SYSTEM, kubectl, until
from tests.cluster.operator_pods import SELECTOR
from tests.patience import PATIENCE

VERSION = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())["version"]
REGISTRY = "docker.io/library"
"""The registry of images that were loaded without one, as container runtimes name it."""


def chart_copy(folder: Path, version: str = VERSION) -> Path:
    """The chart as another version of itself, and without what the server is too old for."""
    copy = Path(shutil.copytree(helm.CHART, folder / version))
    about = yaml.safe_load((copy / "Chart.yaml").read_text()) | {"version": version, "appVersion": version}
    crd = yaml.safe_load((copy / "files/crd.yaml").read_text())
    if install.server_minor() < install.CEL_SINCE:
        del about["kubeVersion"]
        crd = install.without_rules(crd)
    (copy / "Chart.yaml").write_text(yaml.safe_dump(about))
    (copy / "files/crd.yaml").write_text(yaml.safe_dump(crd, sort_keys=False))
    return copy


@dataclass(frozen=True)
class Release:
    """A release in a namespace of its own."""

    namespace: str
    user: str = ""
    """Whom Helm acts for; empty: the administrator."""
    name: str = "dtj-operator"

    def install(self, chart: Path, *words: str, **values: Any) -> None:
        """`helm install`; returns when the operator is available."""
        self._helm("install", self.name, chart, "--values=-", *words, stdin=self._values(values))
        self.rolled_out()

    def upgrade(self, chart: Path, **values: Any) -> None:
        """`helm upgrade`; returns when the new operator is available and the old one is gone."""
        self._helm("upgrade", self.name, chart, "--values=-", stdin=self._values(values))
        self.rolled_out()

    def test(self) -> str:
        """`helm test --logs`; what it says. Raises HelmError when the test fails."""
        return self._helm("test", self.name, "--logs", f"--timeout={4 * PATIENCE}m", timeout=250)

    def uninstall(self) -> None:
        """`helm uninstall`; returns when the operator's pods are gone."""
        self._helm("uninstall", self.name, "--ignore-not-found")
        self.ended()

    def ended(self) -> None:
        """Wait until no pod of the operator runs; AssertionError with what is known of those that do."""
        try:
            until("the operator to be gone", lambda: not self.pods(), 120)
        except AssertionError as error:
            pods = kubectl("--namespace", self.namespace, "describe", "pods", SELECTOR)
            raise AssertionError(f"{error}:\n{pods}") from None

    @property
    def operator(self) -> str:
        """The user that the operator is."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    def objects(self) -> list[dict[str, Any]]:
        """What the release consists of, as Helm applied it."""
        return helm.objects(self._helm("get", "manifest", self.name))

    def pods(self) -> list[str]:
        """The operator's pods that have not ended: one that a node evicted stays when no replica is wanted."""
        going = "--field-selector=status.phase!=Failed,status.phase!=Succeeded"
        return kubectl("--namespace", self.namespace, "get", "pods", SELECTOR, going, "--output=name").split()

    def logs(self) -> str:
        """What the operator's pods have logged."""
        return kubectl(
            "--namespace", self.namespace, "logs", SELECTOR, "--tail=-1", "--prefix", "--ignore-errors"
        )

    def _values(self, values: dict[str, Any]) -> str:
        # The images are those of this version, whichever the chart says it is.
        images = {"image": {"registry": REGISTRY, "tag": VERSION}, "test": {"image": {"tag": VERSION}}}
        budget = {"podDisruptionBudget": {"enabled": install.server_minor() >= install.POLICY_V1_SINCE}}
        return yaml.safe_dump(images | budget | values)

    def rolled_out(self) -> None:
        """Wait until the operator is available."""
        kubectl(
            "--namespace", self.namespace, "rollout", "status", f"deployment/{self.name}",
            f"--timeout={120 * PATIENCE}s", timeout=130,
        )  # fmt: skip

    def _helm(self, command: str, *words: str | Path, stdin: str | None = None, timeout: float = 90) -> str:
        who = ["--kube-as-user", self.user] if self.user else []
        return helm.call(
            command, *words, "--namespace", self.namespace, *who, stdin=stdin, timeout=timeout * PATIENCE
        )


@contextmanager
def without_the_tests_operator() -> Iterator[None]:
    """The operator of the other tests, with its roles, is away in the block."""
    image, version = kubectl(
        "--namespace", SYSTEM, "get", "deployment", install.DEPLOYMENT,
        "--output=jsonpath={.spec.template.spec.containers[0].image}"
        "{' '}{.spec.template.metadata.annotations.dtj\\.dev/image-digest}",
    ).split(" ")  # fmt: skip
    objects = install.operator_objects(image, version or None)
    mine = yaml.safe_dump_all(made for made in objects if made["kind"] != "Namespace")
    # Its pods are ended by the Deployment, not by a garbage collector that may still learn of the CRD.
    kubectl("--namespace", SYSTEM, "scale", f"deployment/{install.DEPLOYMENT}", "--replicas=0")
    try:
        Release(SYSTEM).ended()
        kubectl("delete", "--wait=false", "--filename=-", stdin=mine)
        yield
    finally:
        install.apply(objects)
        Release(SYSTEM).rolled_out()


def granted(user: str, namespace: str) -> set[tuple[str, str]]:
    """Verb and resource of all that a user may do in a namespace, as the API server says to the user."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    said = kubectl("create", "--filename=-", "--output=json", f"--as={user}", stdin=yaml.safe_dump(review))
    return {
        (verb, f"{resource}/{name}" if name else resource)
        for rule in json.loads(said)["status"]["resourceRules"]
        if rule["apiGroups"] != ["authorization.k8s.io"]  # who am I, and what may I: everyone's
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }
