"""The objects of the chart: valid for Kubernetes, restricted, and with no unnecessary right."""

from __future__ import annotations

from functools import cache
from typing import Any

import kubernetes_validate
import pytest
import yaml

from dtj.api.identity import GROUP, PLURAL
from dtj.client.defaults import of_config_map
from dtj.doctor.findings import PERMISSIONS
from dtj.operator_flags import read_flags
from dtj.plan.pods import LOST_NODE_SECONDS
from dtj_trainer import contract
from tests.chart.foreign import FOREIGN, validate_foreign
from tests.chart.generated import CASES
from tests.chart.helm import CHART, NAMESPACE, objects, rendered, template
from tests.chart.validation import NEWEST, OLDEST
from tests.unit.support.pod_security import restricted_faults

Manifest = dict[str, Any]
CLUSTERWIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingWebhookConfiguration",
}


@cache
def case(name: str) -> list[Manifest]:
    folder = next(folder for folder in CASES if folder.name == name)
    return objects(template(yaml.safe_load((folder / "values.yaml").read_text())))


def one(name: str, kind: str) -> Manifest:
    (found,) = [made for made in case(name) if made["kind"] == kind]
    return found


def deployment(values: Manifest) -> Manifest:
    return rendered(values)["Deployment/dtj-operator"]["spec"]


def pod(values: Manifest) -> Manifest:
    return deployment(values)["template"]["spec"]


def container(values: Manifest) -> Manifest:
    (found,) = pod(values)["containers"]
    return found


def flags(name: str) -> Any:
    (container,) = one(name, "Deployment")["spec"]["template"]["spec"]["containers"]
    return read_flags([*container["args"], f"--lease-namespace={NAMESPACE}"])


def test_the_oldest_and_the_newest_kubernetes_are_those_that_are_claimed() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert chart["kubeVersion"] == f">={OLDEST}.0-0"
    assert f"{OLDEST}.0" in kubernetes_validate.utils.all_versions()
    assert tuple(map(int, NEWEST.split("."))) >= (1, 37)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", [folder.name for folder in CASES])
def test_kubernetes_takes_every_object(name: str, version: str) -> None:
    assert case(name)
    for made in case(name):
        if made["kind"] in FOREIGN:
            validate_foreign(made)
        else:
            kubernetes_validate.validate(made, version, strict=True)


def test_the_check_refuses_what_kubernetes_refuses() -> None:
    wrong = one("default", "Deployment") | {"spec": {"replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


@pytest.mark.parametrize("name", [folder.name for folder in CASES])
def test_a_namespace_that_enforces_restricted_takes_every_pod(name: str) -> None:
    pods = [made for made in case(name) if made["kind"] == "Pod"]
    pods.append(one(name, "Deployment")["spec"]["template"])
    for each in pods:
        assert list(restricted_faults(each)) == []


@pytest.mark.parametrize("name", [folder.name for folder in CASES])
def test_every_object_tells_where_it_is_and_whose(name: str) -> None:
    for made in case(name):
        metadata = made["metadata"]
        assert metadata["labels"]["app.kubernetes.io/instance"] == "dtj-operator"
        assert metadata["labels"]["helm.sh/chart"].startswith("dtj-operator-")
        assert ("namespace" in metadata) is (made["kind"] not in CLUSTERWIDE)


def test_what_selects_the_operators_pods_selects_no_other() -> None:
    values = {"networkPolicy": {"enabled": True}, "metrics": {"serviceMonitor": {"enabled": True}}}
    made = rendered(values)
    labels = made["Deployment/dtj-operator"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        made["Deployment/dtj-operator"]["spec"]["selector"]["matchLabels"],
        made["PodDisruptionBudget/dtj-operator"]["spec"]["selector"]["matchLabels"],
        made["NetworkPolicy/dtj-operator"]["spec"]["podSelector"]["matchLabels"],
        made["Service/dtj-operator-metrics"]["spec"]["selector"],
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not selector.items() <= made["Pod/dtj-operator-test"]["metadata"]["labels"].items()
    monitored = made["ServiceMonitor/dtj-operator"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= made["Service/dtj-operator-metrics"]["metadata"]["labels"].items()


# --- the Deployment ----------------------------------------------------------------------------------


def test_the_operator_reads_its_flags() -> None:
    default, two = flags("default"), flags("two-namespaces")

    assert (default.leader_elect, default.namespaces, default.workers) == (True, [], 16)
    assert (default.lease_namespace, default.lease_name) == (NAMESPACE, "dtj-operator")
    assert default.timing == read_flags([]).timing
    assert two.namespaces == ["team-a", "team-b"]
    assert not flags("bare").leader_elect
    assert flags("eks").progress_interval == 10


def test_a_lost_node_loses_its_operator_before_its_jobs() -> None:
    for each in pod({"tolerations": [{"key": "gpu", "operator": "Exists"}]})["tolerations"][:2]:
        assert (each["effect"], each["tolerationSeconds"]) == ("NoExecute", 30)
    assert LOST_NODE_SECONDS > 30


def test_replicas_prefer_different_nodes_unless_told_otherwise() -> None:
    (term,) = pod({})["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert pod({"affinity": {"nodeAffinity": {}}})["affinity"] == {"nodeAffinity": {}}


def test_pods_go_to_nodes_that_can_run_their_images() -> None:
    linux, arm = {"kubernetes.io/os": "linux"}, {"kubernetes.io/arch": "arm64"}

    def selectors(values: Manifest) -> list[Manifest]:
        made = rendered(values)
        job = yaml.safe_load(made["ConfigMap/dtj-operator-test"]["data"]["job.yaml"])
        roles = job["spec"]["replicaSpecs"].values()
        ofs = [role.get("template", {}).get("spec", {}).get("nodeSelector", {}) for role in roles]
        pods = [made["Deployment/dtj-operator"]["spec"]["template"], made["Pod/dtj-operator-test"]]
        return [*(each["spec"]["nodeSelector"] for each in pods), *ofs]

    assert selectors({}) == [linux, linux, {}, {}]
    assert selectors({"arch": "arm64"}) == [linux | arm, linux | arm, arm, arm]
    values = {"nodeSelector": {"pool": "system"}, "test": {"nodeSelector": {"pool": "gpu"}}}
    pools = [{"pool": pool} for pool in ("system", "system", "gpu", "gpu")]
    assert selectors(values) == [linux | pools[0], linux | pools[1], pools[2], pools[3]]


def test_on_the_network_of_its_node_an_operator_waits_for_the_ports_of_the_one_before() -> None:
    assert "hostNetwork" not in pod({})
    assert deployment({})["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}

    made = pod({"hostNetwork": True})
    assert (made["hostNetwork"], made["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    strategy = deployment({"hostNetwork": True})["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


def test_large_numbers_stay_integers() -> None:
    """Helm reads numbers as floats, and writes those from a million on as 1e+06."""
    many = 2_000_000
    values = {"lostNodeSeconds": many, "workers": many, "test": {"timeoutSeconds": many}}
    made = rendered(values)
    job = yaml.safe_load(made["ConfigMap/dtj-operator-test"]["data"]["job.yaml"])

    assert {each["tolerationSeconds"] for each in pod(values)["tolerations"]} == {many}
    assert f"--workers={many}" in container(values)["args"]
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] == many
    assert f"--timeout {many + 30}s" in made["Pod/dtj-operator-test"]["spec"]["containers"][0]["args"][0]


def test_an_image_by_digest_keeps_its_tag_for_people() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    digest = f"sha256:{'0' * 64}"
    assert container({})["image"] == f"dtj-operator:{version}"
    assert container({"image": {"tag": "v2"}})["image"] == "dtj-operator:v2"
    assert container({"image": {"digest": digest}})["image"] == f"dtj-operator:{version}@{digest}"


def test_openshift_may_choose_the_users() -> None:
    values = {"podSecurityContext": {"runAsUser": None}, "jobs": {"runAsUser": None}}
    assert "runAsUser" not in pod(values)["securityContext"]
    assert "runAsUser" not in rendered(values)["Pod/dtj-operator-test"]["spec"]["securityContext"]
    assert flags("openshift").job_user is None
    assert flags("default").job_user == 1000
    assert "--job-user=2000000" in container({"jobs": {"runAsUser": 2_000_000}})["args"]


def test_folders_of_nodes_are_allowed_by_name() -> None:
    folders = ["/var/cache/dtj", "/mnt/nvme"]
    args = container({"dataCache": {"hostPathPrefixes": folders}})["args"]
    assert read_flags([*args, f"--lease-namespace={NAMESPACE}"]).data_cache_host_paths == folders
    assert flags("default").data_cache_host_paths == []


def test_names_come_from_the_release_and_fit() -> None:
    assert "Deployment/ml-dtj-operator" in rendered(release="ml")
    for made in rendered(release="a" * 53).values():
        assert len(made["metadata"]["name"]) <= 63
    assert "Deployment/training" in rendered({"fullnameOverride": "training"})


# --- rights ------------------------------------------------------------------------------------------


def test_one_namespace_needs_no_right_in_the_rest_of_the_cluster() -> None:
    assert {made["metadata"].get("namespace") for made in case("two-namespaces")} == {
        NAMESPACE, "team-a", "team-b",
    }  # fmt: skip


def test_a_role_has_the_rules_of_the_cluster_role() -> None:
    two = [made for made in case("two-namespaces") if made["kind"] == "Role"]
    (whole,) = [
        made
        for made in case("default")
        if made["kind"] == "ClusterRole" and made["metadata"]["name"] == "dtj-operator"
    ]
    mine = [made for made in two if made["metadata"]["name"] == "training"]
    assert [made["metadata"]["namespace"] for made in mine] == ["team-a", "team-b"]
    assert all(made["rules"] == whole["rules"] for made in mine)


def test_the_operator_opens_only_its_own_lease_and_never_reads_a_secret() -> None:
    for name in ("default", "two-namespaces"):
        roles = {
            made["metadata"]["name"]: made["rules"]
            for made in case(name)
            if made["kind"] in ("Role", "ClusterRole")
        }
        lease = flags(name).lease_name
        assert [rule.get("resourceNames") for rule in roles[f"{lease}-leader-election"]] == [None, [lease]]
        for rule in roles[lease]:
            assert "*" not in {word for words in rule.values() for word in words}
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["create"]


def test_bindings_bind_what_is_made() -> None:
    for name in ("default", "two-namespaces", "eks"):
        made = case(name)
        there = {(each["kind"], each["metadata"]["name"], each["metadata"].get("namespace")) for each in made}
        bindings = [each for each in made if each["kind"].endswith("RoleBinding")]
        assert bindings
        for binding in bindings:
            role = binding["roleRef"]
            assert (role["kind"], role["name"], binding["metadata"].get("namespace")) in there
            for subject in binding["subjects"]:
                assert (subject["kind"], subject["name"], subject["namespace"]) in there


def allowed(role: Manifest) -> set[tuple[str, str, str]]:
    return {
        (verb, resource, group)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for group in rule["apiGroups"]
    }


def test_a_user_may_do_all_that_the_command_does_but_read_secrets() -> None:
    user = allowed(rendered()["ClusterRole/dtj-user"])
    needed = {(p.verb, p.resource, p.group) for p in PERMISSIONS}

    assert needed - user == {("get", "secrets", "")}


def test_a_viewer_changes_nothing_and_a_user_only_jobs_and_their_code() -> None:
    reading = {"get", "list", "watch"}
    viewer, user = (allowed(rendered()[f"ClusterRole/dtj-{who}"]) for who in ("viewer", "user"))

    assert {verb for verb, _, _ in viewer} == reading
    assert viewer <= user
    changing = {(resource, group) for verb, resource, group in user if verb not in reading}
    assert changing == {(PLURAL, GROUP), ("configmaps", "")}, "a status is the operator's"
    of_configs = {verb for verb, resource, _ in user if resource == "configmaps"}
    assert of_configs == {"get", "create", "patch", "delete"}


def test_each_namespace_gets_the_defaults_of_its_users() -> None:
    made = [each for each in case("two-namespaces") if each["metadata"]["name"] == "dtj-defaults"]
    assert [each["metadata"]["namespace"] for each in made] == ["team-a", "team-b"]
    assert "ConfigMap/dtj-defaults" not in rendered()
    toleration = {"key": "gpu", "operator": "Exists", "tolerationSeconds": 300}
    config = {
        "image": {"Horovod": "trainer:1"},
        "serviceAccountName": "trainer",
        "artifacts": {"uri": "s3://training/jobs"},
        "accelerator": {"nodeSelector": {"example.com/pool": "a100"}, "tolerations": [toleration]},
    }
    one = rendered({"userDefaults": {"config": config, "namespaces": ["team-c"]}})["ConfigMap/dtj-defaults"]
    assert one["metadata"]["namespace"] == "team-c"
    read = of_config_map(one, "team-c")
    assert read is not None
    assert read.model_dump(by_alias=True, mode="json", exclude_unset=True) == config


def test_images_of_the_defaults_are_in_the_registry_of_all_images() -> None:
    images = {"Horovod": "dtj-trainer-horovod:0.1.0", "ParameterServer": "example.com/own/keras:1"}
    values = {"userDefaults": {"config": {"image": images}, "namespaces": ["ml"]}}
    for registry in ({"image": {"registry": "reg.io/dtj/"}}, {"global": {"imageRegistry": "reg.io/dtj"}}):
        read = of_config_map(rendered(values | registry)["ConfigMap/dtj-defaults"], "ml")
        assert read is not None
        assert read.image == {**images, "Horovod": "reg.io/dtj/dtj-trainer-horovod:0.1.0"}


def test_who_edits_or_views_a_namespace_uses_or_sees_jobs_unless_told_otherwise() -> None:
    def aggregated(values: Manifest) -> dict[str, list[str]]:
        return {
            name: [label for label in made["metadata"]["labels"] if "aggregate-to" in label]
            for name, made in rendered(values).items()
            if name.startswith("ClusterRole/dtj-") and name != "ClusterRole/dtj-operator"
        }

    to = "rbac.authorization.k8s.io/aggregate-to"
    assert aggregated({}) == {
        "ClusterRole/dtj-user": [f"{to}-edit"],
        "ClusterRole/dtj-viewer": [f"{to}-view"],
    }
    assert aggregated({"userRoles": {"aggregate": False}}) == {
        "ClusterRole/dtj-user": [], "ClusterRole/dtj-viewer": [],
    }  # fmt: skip


# --- network -----------------------------------------------------------------------------------------


def test_the_network_policy_lets_through_what_the_operator_needs() -> None:
    spec = rendered({"networkPolicy": {"enabled": True}})["NetworkPolicy/dtj-operator"]["spec"]
    ports = {port["name"] for port in container({})["ports"]}

    assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} == ports
    assert {port["port"] for rule in spec["egress"] for port in rule["ports"]} == {
        53, 443, 6443, contract.PROGRESS_PORT,
    }  # fmt: skip
