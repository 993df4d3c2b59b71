"""The objects that `dtj serve --manifest` prints equal the committed objects, and Kubernetes takes them.

After a change that is meant: `pytest tests/golden --update-golden`, then read the difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.job import Manifest
from dtj.api.yaml_text import dump_all
from dtj.plan.model_server import (
    ModelServer,
    default_name,
    disruption_budget,
    faults,
    inference_service,
    objects,
)
from tests.unit.support.pod_security import restricted_faults

SMALL = ModelServer("vgg-serve", {"vgg": "s3://training/jobs/ml/vgg-1a2b3c4d"}, options=("--threads=1",))
WHOLE = ModelServer(
    name="pictures",
    models={"vgg": "s3://training/jobs/ml/vgg-1a2b3c4d", "shirts": "s3://training/shirts/model"},
    image="registry.example.com/dtj/dtj-serve:0.1.0",
    namespace="ml",
    replicas=3,
    cpus=4,
    memory="4Gi",
    port=9000,
    options=("--max-delay=5.0", "--threads=2", "--workers=2", "--pin"),
    secret="s3",
    endpoint="https://s3.example.com",
    service_account="reader",
)
CASES: dict[str, tuple[ModelServer, Callable[[ModelServer], tuple[Manifest, ...]]]] = {
    "model-server": (SMALL, objects),
    "model-server-whole": (WHOLE, objects),
    "model-server-kserve": (WHOLE, lambda server: (inference_service(server),)),
}


def pod_of(manifest: Manifest) -> Manifest | None:
    """The pod of a Deployment, or of an InferenceService, whose predictor has a pod's fields beside its own."""
    if manifest["kind"] == "Deployment":
        return {"apiVersion": "v1", "kind": "Pod", **deepcopy(manifest["spec"]["template"])}
    if manifest["kind"] == "InferenceService":
        assert manifest["spec"].keys() == {"predictor"}
        spec = deepcopy(manifest["spec"]["predictor"])
        assert [spec.pop(name) for name in ("minReplicas", "maxReplicas")] == [3, 3]
        return {"apiVersion": "v1", "kind": "Pod", "spec": spec}
    return None


@pytest.mark.parametrize("name", CASES)
def test_the_objects_are_the_committed_ones(name: str, request: pytest.FixtureRequest) -> None:
    server, build = CASES[name]
    assert [*faults(server)] == []
    found = [*build(server)]
    expected = Path(__file__).with_name(f"{name}.yaml")
    if request.config.getoption("--update-golden"):
        expected.write_text(dump_all(found))
    assert found == [*yaml.safe_load_all(expected.read_text())]


@pytest.mark.parametrize("name", CASES)
def test_kubernetes_takes_them_in_the_strictest_namespace(name: str) -> None:
    import kubernetes_validate  # takes seconds: not for who runs another test

    server, build = CASES[name]
    found = build(server)
    pods = [pod for manifest in found if (pod := pod_of(manifest))]
    kinds = [manifest for manifest in found if manifest["kind"] != "InferenceService"]
    assert pods
    for manifest in [*kinds, *({**pod, "metadata": {"name": "x"}} for pod in pods)]:
        for version in ("1.25", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(manifest, version, strict=True)
    for pod in pods:
        assert [*restricted_faults(pod)] == []


def test_the_schemas_refuse_a_budget_with_another_field() -> None:
    """The schemas are those of Kubernetes' own API, also for policy/v1, which the local cluster does not serve."""
    import kubernetes_validate

    budget = disruption_budget(WHOLE)
    assert (budget["apiVersion"], budget["spec"]["maxUnavailable"]) == ("policy/v1", 1)
    for wrong in ({"maxUnavailable": {}}, {"atMost": 1}, {"selector": {"labels": {}}}):
        broken = {**budget, "spec": {**budget["spec"], **wrong}}
        for version in ("1.25", kubernetes_validate.latest_version()):
            with pytest.raises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate(broken, version, strict=True)


def test_an_inference_service_has_only_what_knative_takes() -> None:
    """https://github.com/knative/serving/blob/main/pkg/apis/serving/fieldmask.go, without what is off by default."""
    predictor = inference_service(WHOLE)["spec"]["predictor"]
    of_a_pod = {"containers", "automountServiceAccountToken", "enableServiceLinks", "serviceAccountName"}
    assert predictor.keys() == {"minReplicas", "maxReplicas", *of_a_pod}
    (container,) = predictor["containers"]
    assert container["name"] == "kserve-container"
    assert not {"lifecycle", "stdin", "tty", "volumeDevices"} & container.keys()
    assert [*container["ports"][0]] == ["containerPort", "protocol"]


def test_the_selectors_find_the_pods_and_no_other_server() -> None:
    deployment, service, budget = objects(WHOLE)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert objects(SMALL)[1]["spec"]["selector"] != labels
    assert default_name(WHOLE.models) == "vgg-serve"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "VGG"}, "--name 'VGG' has to begin with a letter"),
        ({"name": "a" * 64}, "at most 63"),
        (
            {"models": {"vgg": "./model"}},
            "vgg=./model has to be s3://bucket/prefix: a pod can't read a folder",
        ),
        ({"models": {"vgg": "file:///model"}}, "vgg=file:///model has to be s3://"),
        ({"namespace": "ML"}, "--namespace 'ML'"),
        ({"image": "My Server"}, "--image 'My Server' is not an image reference"),
        ({"memory": "2 GB"}, "--memory '2 GB' has to be a quantity such as 2Gi"),
        ({"memory": "0"}, "--memory '0'"),
        ({"port": 0}, "--port 0 has to be between 1 and 65535"),
        ({"secret": "S3_"}, "--secret 'S3_'"),
        ({"endpoint": "s3.example.com"}, "--endpoint 's3.example.com' has to be a URL such as https://"),
        ({"service_account": ""}, "--service-account ''"),
    ],
    ids=lambda value: re.sub(r"\W+", "-", str(value))[:40] if isinstance(value, dict) else "",
)
def test_what_can_not_be_is_told(change: dict[str, Any], said: str) -> None:
    (fault,) = faults(replace(WHOLE, **change))
    assert said in fault
