"""Validation of pod templates by Kubernetes' own schema of pods.

* the schema file and the package that it is generated from
* templates that are valid, pods of every plan among them
* templates that are wrong, each with its line and a suggestion
* the work to check a template
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.job import Manifest, read_job
from dtj.api.job_file import read_job_file
from dtj.api.manifest_check import check
from dtj.api.pod_template_rules import REPLICA_POD, TENSORBOARD_POD, _definition, _definitions, pod_faults
from dtj.api.validation import faults
from dtj.cli.plan_summary import print_summary
from dtj.plan.job import plan_job
from tests import pod_schema_file
from tests.unit.support.jobs import job, manifest
from tests.unit.support.steps import steps

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*/job.yaml"))
WORKER = "spec.replicaSpecs.worker.template.spec"
LEAVES = {"string", "int32", "int64", "boolean", "quantity", "int-or-string", "object"}
WRONG: list[Any] = [None, True, 1.5, "x", [], {}, [{}], {"x": None}]


def said(spec: Manifest, role: str = "worker", **more: Any) -> list[str]:
    roles = {"worker": {"replicas": 2}} | {role: {"template": {"spec": spec}}}
    _, found = check(manifest(replicaSpecs=roles, **more))
    return [str(fault) for fault in found]


def container(**fields: Any) -> Manifest:
    return {"containers": [{"name": "trainer", **fields}]}


# --- the file ----------------------------------------------------------------------------------------


def test_the_file_is_what_the_package_gives() -> None:
    assert pod_schema_file.FILE.read_text() == pod_schema_file.written(), (
        "run `make pod-schema` and commit it"
    )


def test_the_listed_values_are_those_that_kubernetes_describes() -> None:
    for field, text in pod_schema_file.descriptions().items():
        for value in pod_schema_file.VALUES[field].split():
            assert re.search(rf"\b{value}\b", text), f"{field}: {value}"


def test_every_type_of_the_file_is_known() -> None:
    kinds = {kind.strip("[]{}") for fields in _definitions().values() for kind in fields.values()}

    assert {kind for kind in kinds if "|" not in kind} <= LEAVES | _definitions().keys()
    assert len(_definition("PodSpec")[0]) > 35


# --- what is right -----------------------------------------------------------------------------------


@pytest.mark.parametrize("file", GOLDEN, ids=lambda path: path.parent.name)
def test_pods_that_the_operator_makes_keep_to_the_schema(file: Path) -> None:
    plan = plan_job(read_job(yaml.safe_load(file.read_text())))

    for pod in plan.pods:
        assert list(pod_faults("PodSpec", pod["spec"], "spec")) == []
    if plan.tensorboard:
        template = plan.tensorboard.deployment["spec"]["template"]
        assert list(pod_faults("PodSpec", template["spec"], "spec")) == []


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}, {"key": "a", "effect": ""}]},
        {"hostUsers": False, "resources": {"limits": {"cpu": 1.5}}, "terminationGracePeriodSeconds": 60.0},
        {"initContainers": [{"name": "proxy", "image": "x", "restartPolicy": "Always"}]},
        {"securityContext": {"runAsUser": 0, "seccompProfile": {"localhostProfile": "a"}, "fsGroup": None}},
        container(volumeMounts=[{"mountPath": "/dev/shm", "readOnly": False}], image="x", tty=None),
        container(readinessProbe={"tcpSocket": {"host": "a"}, "periodSeconds": 5}),
        container(
            livenessProbe={"httpGet": {"port": "http"}}, ports=[{"containerPort": 80, "protocol": "UDP"}]
        ),
        container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
        {"volumes": [{"name": "dtj-shm", "emptyDir": {"sizeLimit": "4Gi"}}]},
        {
            "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}],
            "containers": [
                {"name": "side", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
            ],
        },
        container(volumeMounts=[{"name": "dtj-workspace", "mountPath": "/more", "subPath": "more"}]),
        container(volumeMounts=[{"name": "dtj-ssh", "mountPath": "/keys"}]),
        container(readinessProbe={"httpGet": {"port": 8474}}, livenessProbe={"periodSeconds": 5, "exec": {}}),
        container(
            env=[{"name": "A", "value": "", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        ),
    ],
)
def test_right_templates_are_taken(spec: Manifest) -> None:
    assert said(spec) == []


def test_a_template_may_leave_out_what_the_operators_pods_have() -> None:
    pods = plan_job(job(tensorboard={"enabled": True}, artifacts={"uri": "s3://bucket/jobs"}))
    assert pods.tensorboard is not None
    board = pods.tensorboard.deployment["spec"]["template"]["spec"]

    def by_key(value: Any) -> Any:
        match value:
            case dict():
                return {key: by_key(child) for key, child in value.items()}
            case list():
                return {
                    entry.get("mountPath", entry.get("name")): by_key(entry)
                    for entry in value
                    if "name" in entry
                }
        return {}

    def within(given: Any, pod: Any) -> bool:
        return all(key in pod and within(child, pod[key]) for key, child in given.items())

    assert within(REPLICA_POD.given, by_key(pods.pods[0]["spec"]))
    assert within(TENSORBOARD_POD.given, by_key(board))


# --- what is wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"nodeselector": {}}, ".nodeselector: unknown field; did you mean nodeSelector?"),
        ({"frobnicate": {}}, ".frobnicate: unknown field"),
        ({"nodeSelector": {"a": 1}}, ".nodeSelector[a]: must be a string, got 1"),
        ({"hostIPC": "yes"}, ".hostIPC: must be true or false, got 'yes'"),
        ({"priority": "1"}, ".priority: must be a whole number, got '1'"),
        ({"priority": True}, ".priority: must be a whole number, got True"),
        ({"priority": 2**31}, ".priority: must be a number of 32 bits (int32), got 2147483648"),
        ({"dnsPolicy": "First"}, ".dnsPolicy: must be ClusterFirstWithHostNet, ClusterFirst, "),
        ({"tolerations": [{"effect": "NoScedule"}]}, ".tolerations[0].effect: must be "),
        ({"tolerations": [None]}, ".tolerations[0]: must be an object, got None"),
        ({"volumes": [{"name": "v", "persistantVolumeClaim": {}}]}, "did you mean persistentVolumeClaim?"),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {}}]}, ".persistentVolumeClaim.claimName: required"),
        ({"volumes": [{"name": "v"}, {"name": "v"}]}, ".volumes[1].name: 'v' is given twice"),
        ({"volumes": None}, ".volumes: must be a list of objects, got None"),
        ({"resources": {"limits": {"cpu": "1 core"}}}, "[cpu]: '1 core' is not a quantity such as 2, 500m or 4Gi"),
        (container(image=None), ".containers[trainer].image: must be an image reference, got None"),
        (container(imagePullPolicy="always"), ".imagePullPolicy: must be Always, Never or IfNotPresent, got 'always"),
        (container(args=None), ".args: must be a list of strings, got None"),
        (container(args=["a", 1]), ".args[1]: must be a string, got 1"),
        (container(args=["\ud800"]), r".args[0]: must be a string, got '\ud800'"),
        ({"nodeSelector": {"\ud800": "a"}}, r".nodeSelector[\ud800]: the key must be a string, got '\ud800'"),
        (container(env=[{}]), ".env[0].name: required"),
        (container(env=[{"name": "A", "value": 1}]), ".env[0].value: must be a string, got 1"),
        (container(livenessProbe={"httpGet": {"path": "/"}}), ".livenessProbe.httpGet.port: required"),
        (container(ports=[{}]), ".ports[0].containerPort: required"),
        (container(volumeMounts=[{"name": "v", "mountPath": "/v"}]), "the pod has no volume 'v'; give one in"),
        (container(volumeMounts=[{"mountPath": "/v"}]), ".volumeMounts[0].name: required"),
        ({"containers": [{"name": "trainer"}, {"name": "trainer"}]}, ".containers[1].name: 'trainer' is given tw"),
        ({"containers": [{"name": 1.5, "image": "x"}]}, ".containers[0].name: must be a string, got 1.5"),
        ({"containers": [{"name": "", "image": "x"}]}, ".name: required (the container that trains is"),
        ({"initContainers": [{"name": "a"}]}, ".initContainers[a].image: required"),
        ({"initContainers": ["a"]}, ".initContainers[0]: must be an object, got 'a'"),
        ({"affinity": {"nodeAffinity": []}}, ".affinity.nodeAffinity: must be an object, got []"),
        (
            container(readinessProbe={"tcpSocket": {"port": 1}, "httpGet": {"port": 1}}),
            ".readinessProbe: give only one of httpGet and tcpSocket",
        ),
        (container(livenessProbe={"periodSeconds": 1}), ".livenessProbe: needs one of exec, grpc, httpGet and tcpS"),
        (container(lifecycle={"preStop": {}}), ".preStop: needs one of exec, httpGet, sleep and tcpSocket"),
        (
            container(env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
            ".env[0]: give only one of value and valueFrom",
        ),
        ({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]}, "one of emptyDir and hostPath"),
        (
            {"volumes": [{"name": "dtj-shm", "hostPath": {"path": "/"}}]},
            ".volumes[0]: must be an emptyDir: dtj-shm is /dev/shm, got hostPath",
        ),
        ({"terminationGracePeriodSeconds": 10**14}, "Seconds: must be at most 31536000, a year, got 100000000000000"),
    ],
)  # fmt: skip
def test_wrong_templates_are_refused_with_what_would_be_right(spec: Manifest, message: str) -> None:
    (fault,) = said(spec)

    assert message in fault
    assert fault.startswith(WORKER)


def test_the_ssh_volume_is_not_there_for_a_parameter_server() -> None:
    spec = container(volumeMounts=[{"name": "dtj-ssh", "mountPath": "/keys"}])
    (fault,) = said(spec, "ps", strategy="ParameterServer")

    assert "the pod has no volume 'dtj-ssh'" in fault


def test_a_tensorboard_is_checked_too() -> None:
    board = {"enabled": True, "template": {"spec": {"containers": [{"name": "tensorboard", "tti": True}]}}}
    _, (fault,) = check(manifest(tensorboard=board, artifacts={"uri": "s3://bucket/jobs"}))

    assert str(fault) == (
        "spec.tensorboard.template.spec.containers[tensorboard].tti: unknown field; did you mean tty?"
    )


def test_a_wrong_template_is_named_with_its_line() -> None:
    text = yaml.safe_dump(
        manifest(replicaSpecs={"worker": {"template": {"spec": container(env=[{"valu": 1}])}}})
    )
    found = read_job_file(text, "job.yaml").faults

    lines = text.splitlines()
    assert [(lines[fault.line - 1].strip(), fault.message) for fault in found] == [
        ("- valu: 1", "unknown field; did you mean value?"),
        ("- valu: 1", "required"),
    ]


@pytest.mark.parametrize(("kind", "launcher"), [("PodSpec", "Native"), ("Container", "MPIJob")])
def test_no_value_of_a_field_that_is_taken_breaks_the_plan(kind: str, launcher: str) -> None:
    for field in _definition(kind)[0]:
        for wrong in WRONG:
            spec = {field: wrong} if kind == "PodSpec" else container(**{field: wrong})
            roles = {"worker": {"template": {"spec": copy.deepcopy(spec)}}}
            made, found = check(manifest(horovod={"launcher": launcher}, replicaSpecs=roles))
            if made is not None and not found:
                plan_job(made)
                print_summary(made)


# --- how much work it is -----------------------------------------------------------------------------


def test_a_usual_template_is_checked_in_few_steps() -> None:
    (file,) = (file for file in GOLDEN if file.parent.name == "templates")
    usual = read_job(yaml.safe_load(file.read_text()))
    bare = read_job(manifest())
    assert faults(usual) == faults(bare) == []

    assert steps(lambda: faults(usual)) - steps(lambda: faults(bare)) < 1000


def test_it_is_checked_once_a_role_however_many_replicas_there_are() -> None:
    def sized(replicas: int) -> int:
        template = {"spec": container(env=[{"name": "A", "value": "b"}])}
        made = read_job(manifest(replicaSpecs={"worker": {"replicas": replicas, "template": template}}))
        return steps(lambda: faults(made))

    sized(1)
    assert sized(1) == sized(3)


def test_only_the_first_unknown_fields_are_compared_with_the_known_ones() -> None:
    def unknown(number: int) -> int:
        spec = {f"nodeSelectr{index}": 1 for index in range(number)}
        return steps(lambda: list(pod_faults("PodSpec", spec, "spec")))

    assert unknown(200) < unknown(100) * 1.1
