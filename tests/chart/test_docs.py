"""Commands in the pages on installation and monitoring, as far as they can be checked without a cluster."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.job import read_job
from dtj.api.validation import faults
from tests.chart.alerts import alerts
from tests.chart.generated import CASES
from tests.chart.helm import CHART, NAMESPACE, ROOT, call, objects, rendered, template
from tests.chart.validation import NEWEST, OLDEST, check
from tests.unit.support.jobs import manifest

PLACES = sorted((ROOT / "docs/install").glob("*.md"))
INSTALL, MONITORING = ((ROOT / "docs" / name).read_text() for name in ("install.md", "monitoring.md"))
PAGES = {
    path.name: path.read_text().replace("\\\n", " ")
    for path in (
        ROOT / "README.md",
        ROOT / "docs/install.md",
        ROOT / "docs/webhook.md",
        ROOT / "docs/private-images.md",
        ROOT / "docs/monitoring.md",
        ROOT / "docs/data-shards.md",
        ROOT / "docs/code.md",
        CHART / "README.md",
        *PLACES,
    )
}
VALUES = [
    block
    for text in PAGES.values()
    for block in re.findall(r"<!-- values.*?-->\n *```yaml\n(.*?)```", text, re.DOTALL)
]
OBJECTS = [
    made
    for text in PAGES.values()
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    for made in objects(block)
    if "kind" in made
]
COMMANDS = [
    (name, shlex.split(line))
    for name, text in PAGES.items()
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    for line in re.findall(r"^ *\$ (helm .*)", block, re.MULTILINE)
]


def test_there_is_something_to_check() -> None:
    assert len(VALUES) == 13
    assert [path.stem for path in PLACES] == ["aks", "bare-metal", "eks", "gke", "openshift"]
    assert {made["kind"] for made in OBJECTS} >= {"ClusterConfig", "ClusterRole"}
    assert {words[1] for _, words in COMMANDS} == {"install", "test", "upgrade", "uninstall", "template"}


@pytest.mark.parametrize("block", VALUES)
def test_values_shown_are_taken_and_change_something(block: str) -> None:
    assert objects(template(yaml.safe_load(block))) != objects(template())


@pytest.mark.parametrize("made", OBJECTS, ids=lambda made: made["metadata"]["name"])
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_objects_shown_are_taken(made: dict[str, Any], version: str) -> None:
    check(made, version)


def test_the_overlay_of_eks_is_what_its_page_shows() -> None:
    values = yaml.safe_load((ROOT / "manifests/overlays/eks/values.yaml").read_text())
    assert values in [yaml.safe_load(block) for block in VALUES]


def test_every_file_named_for_a_command_is_there() -> None:
    named = {
        name
        for text in PAGES.values()
        for name in re.findall(r"(?:manifests|charts)/[\w./-]*\w", text)
        if name != "manifests/rbac"
    }
    assert len(named) > 8
    for name in named:
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(("page", "words"), COMMANDS)
def test_helm_knows_what_is_shown(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "charts").symlink_to(ROOT / "charts")
    (tmp_path / "values.yaml").write_text(VALUES[0])
    if words[1] == "install":
        assert "STATUS: pending-install" in call(*words[1:], "--dry-run=client")
    elif words[1] == "template":
        assert yaml.safe_load(call(*words[1:]))["spec"]["groups"]
    else:
        known = call(words[1], "--help")
        assert [word for word in words if word.startswith("--") and f"{word} " not in known] == []


def test_objects_that_commands_name_are_made() -> None:
    made = rendered()
    named = re.findall(r"(deployment|clusterrole)[/=](\S+)", INSTALL, re.IGNORECASE)
    kinds = {"deployment": "Deployment", "clusterrole": "ClusterRole"}
    assert len(named) == 3
    for kind, name in named:
        assert f"{kinds[kind]}/{name}" in made
    assert "Pod/dtj-operator-test" in made
    assert "logs dtj-operator-test" in INSTALL
    assert "CustomResourceDefinition/distributedtrainingjobs.dtj.dev" in made
    assert INSTALL.count("crd distributedtrainingjobs.dtj.dev") == 1


def test_who_installs_for_some_namespaces_has_what_the_roles_give() -> None:
    """Kubernetes' role admin has the rest: pods, Services, ConfigMaps, Secrets, Deployments, NetworkPolicies."""
    (block,) = re.findall(r"<!-- rights -->\n```yaml\n(.*?)```", INSTALL, re.DOTALL)
    mine = {right for rule in yaml.safe_load(block)["rules"] for right in rights(rule)}
    given = {
        right
        for made in rendered({"watchNamespaces": ["team-a"], "crds": {"install": False}}).values()
        if made["kind"] == "Role"
        for rule in made["rules"]
        for right in rights(rule)
    }
    of_admin = {
        right
        for right in given
        if right[0] in ("", "apps", "networking.k8s.io") and right != ("", "events", "create")
    }

    assert mine == given - of_admin


def rights(rule: dict[str, Any]) -> set[tuple[str, ...]]:
    """Group, resource and verb."""
    return set(itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"]))


def test_every_alert_is_described_and_says_what_to_do() -> None:
    described, advice = MONITORING.split("## Alerts")[1].split("### What to do")
    assert set(re.findall(r"^\| `(\w+)` \|", described, re.MULTILINE)) == set(alerts())
    heads = re.findall(r"^- \*\*(.+?)\*\*:", advice, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(heads))) == set(alerts())


def test_a_prometheus_without_an_operator_gives_the_labels_that_alerts_ask_for() -> None:
    (block,) = re.findall(r"```yml\n(.*?)```", MONITORING, re.DOTALL)
    (scrape,) = yaml.safe_load(block)["scrape_configs"]
    pods = rendered()["Deployment/dtj-operator"]["spec"]["template"]
    key, _, value = scrape["kubernetes_sd_configs"][0]["selectors"][0]["label"].partition("=")
    ports = {port["name"] for port in pods["spec"]["containers"][0]["ports"]}
    kept = next(rule for rule in scrape["relabel_configs"] if rule.get("action") == "keep")
    given = {rule["target_label"] for rule in scrape["relabel_configs"] if "target_label" in rule}

    assert pods["metadata"]["labels"][key] == value
    assert kept["regex"] in ports
    assert scrape["job_name"] == "dtj-operator-metrics"
    assert {"namespace", "pod"} <= given
    assert scrape["kubernetes_sd_configs"][0]["namespaces"] == {"names": [NAMESPACE]}


def test_the_service_account_of_a_role_is_where_it_is_said_to_be() -> None:
    place = "replicaSpecs.worker.template.spec.serviceAccountName"
    assert f"{place}: trainer" in (ROOT / "manifests/eks/cluster.yaml").read_text().replace(
        "<role>", "worker"
    )
    job: dict[str, Any] = manifest()
    job["spec"]["replicaSpecs"]["worker"]["template"] = {"spec": {"serviceAccountName": "trainer"}}
    assert faults(read_job(job)) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_notes_say_what_to_do_next_with_these_values(case: Path) -> None:
    values = yaml.safe_load((case / "values.yaml").read_text())
    said = call(
        "install", "dtj-operator", CHART, "--namespace=dtj-system", "--dry-run=client",
        f"--values={case / 'values.yaml'}",
    )  # fmt: skip
    notes = said[said.index("NOTES:") :]
    name = "training" if case.name == "two-namespaces" else "dtj-operator"

    assert f"rollout status deployment/{name}" in notes
    assert ("image.registry is empty" in notes) is (case.name != "eks")
    assert ("helm test dtj-operator" in notes) is (case.name != "bare")
    assert ("crds.install is false" in notes) is (values.get("crds", {}).get("install") is False)
    numbers = re.findall(r"^(\d)\. ", notes, re.MULTILINE)
    assert numbers == [str(n + 1) for n in range(len(numbers))]
    assert "\n\n\n" not in notes.strip()
