"""The cluster of `make cluster`: names, Services, S3 and RBAC work from pods on two nodes.

* names and Services across nodes
* the object store
* RBAC
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.cluster.jobs import until
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster
PORT = 8080
GET = f"""
import ssl, sys, urllib.error, urllib.request
context = ssl.create_default_context(cafile=sys.argv[3]) if len(sys.argv) > 3 else None
headers = dict(Authorization="Bearer " + open(sys.argv[2]).read()) if len(sys.argv) > 2 and sys.argv[2] else dict()
request = urllib.request.Request(sys.argv[1], headers=headers)
try:
    answer = urllib.request.urlopen(request, timeout={5 * PATIENCE}, context=context)
    print(answer.status, len(answer.read()))
except urllib.error.HTTPError as error:
    print(error.code)
"""
SECRETS = "/var/run/secrets/kubernetes.io/serviceaccount"


def kubectl(*words: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["kubectl", *words], input=stdin, capture_output=True, text=True, check=False, timeout=60 * PATIENCE
    )
    assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def image() -> str:
    """Any of the project's images: all of them have Python."""
    if given := os.environ.get("DTJ_TEST_IMAGE"):
        return given
    nodes = json.loads(kubectl("get", "nodes", "--output=json"))["items"]
    names = {
        name for node in nodes for one in node["status"].get("images", []) for name in one["names"] or []
    }
    ours = sorted(name for name in names if "dtj-" in name and "@" not in name and "pause" not in name)
    assert ours, "none of the project's images is on a node: python -m tests.cluster.images load"
    return ours[0]


@pytest.fixture(scope="module")
def namespace(image: str) -> Iterator[str]:
    """Two pods on two nodes that serve HTTP, with names of a headless Service, one behind a Service of its own."""
    name = f"bringup-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    try:
        # A pod that comes before its service account is refused.
        kubectl("wait", "--for=jsonpath={.metadata.name}=default", "serviceaccount/default",
                f"--timeout={30 * PATIENCE}s", "--namespace", name)  # fmt: skip
        items = [*(pod(one, image) for one in ("a", "b")), service("peers", "None"), service("web", None)]
        kubectl("apply", "--namespace", name, "--filename=-",
                stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))  # fmt: skip
        kubectl(
            "wait",
            "--for=condition=Ready",
            "pod/a",
            "pod/b",
            f"--timeout={40 * PATIENCE}s",
            "--namespace",
            name,
        )
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(params=["a", "b"])
def here(request: pytest.FixtureRequest) -> str:
    """The pod that a question is asked in."""
    return str(request.param)


def pod(name: str, image: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "http.server", str(PORT), "--directory", "/usr/share"],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "bringup", "one": name}},
        "spec": {
            "hostname": name,
            "subdomain": "peers",
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
            "affinity": {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": {"app": "bringup"}},
                        }
                    ]
                }
            },
        },
    }


def service(name: str, address: str | None) -> dict[str, Any]:
    selector = {"app": "bringup"} if address else {"one": "a"}
    spec = {"selector": selector, "ports": [{"port": PORT}], **({"clusterIP": address} if address else {})}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def inside(namespace: str, here: str, code: str, *arguments: str) -> str:
    words = ("--namespace", namespace, "--", "python3", "-c", code, *arguments)
    return kubectl("exec", here, *words).strip()


def other(here: str) -> str:
    return {"a": "b", "b": "a"}[here]


def test_a_headless_service_names_each_pod(namespace: str, here: str) -> None:
    name = f"{other(here)}.peers.{namespace}.svc.cluster.local"
    path = "--output=jsonpath={.status.podIP}"
    address = kubectl("get", "pod", other(here), "--namespace", namespace, path)
    found = inside(namespace, here, "import socket, sys; print(socket.gethostbyname(sys.argv[1]))", name)
    assert found == address


def test_an_unknown_name_is_refused_at_once(namespace: str, here: str) -> None:
    code = (
        "import socket\ntry: print(socket.gethostbyname('nobody.peers'))\n"
        "except socket.gaierror as error: print(error.errno)"
    )
    assert inside(namespace, here, code) == str(socket.EAI_NONAME)


def test_a_pod_reaches_one_on_another_node_by_its_short_name(namespace: str, here: str) -> None:
    assert inside(namespace, here, GET, f"http://{other(here)}.peers:{PORT}/").startswith("200")
    until("its log", lambda: "GET /" in kubectl("logs", other(here), "--namespace", namespace), 30)


def test_a_service_address_leads_to_its_pod(namespace: str, here: str) -> None:
    address = kubectl(
        "get", "service", "web", "--namespace", namespace, "--output=jsonpath={.spec.clusterIP}"
    )
    assert inside(namespace, here, GET, f"http://{address}:{PORT}/").startswith("200")


def test_s3_answers_pods_and_refuses_a_wrong_secret(namespace: str, here: str) -> None:
    def url(secret: str) -> str:
        client = boto3.client(
            "s3",
            endpoint_url=os.environ["DTJ_TEST_S3_ENDPOINT"],
            region_name="us-east-1",
            aws_access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=secret,
            config=Config(signature_version="s3v4"),
        )
        key = {"Bucket": "datasets", "Key": "fashion-mnist/t10k-labels-idx1-ubyte.gz"}
        return client.generate_presigned_url("get_object", Params=key)

    assert inside(namespace, here, GET, url(os.environ["AWS_SECRET_ACCESS_KEY"])).startswith("200")
    assert inside(namespace, here, GET, url("wrong")) == "403"


def test_a_plain_service_account_and_nobody_are_refused(namespace: str, here: str) -> None:
    secrets = f"https://kubernetes.default/api/v1/namespaces/{namespace}/secrets"
    ca = f"{SECRETS}/ca.crt"
    assert inside(namespace, here, GET, secrets, f"{SECRETS}/token", ca) == "403"
    assert inside(namespace, here, GET, secrets, "", ca) == "403"
