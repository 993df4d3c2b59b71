"""The cluster that `make cluster` made is one: names, services, S3 and RBAC work from inside pods."""

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

pytestmark = pytest.mark.cluster
PORT = 8080
GET = """
import ssl, sys, urllib.error, urllib.request
context = ssl.create_default_context(cafile=sys.argv[3]) if len(sys.argv) > 3 else None
headers = {"Authorization": "Bearer " + open(sys.argv[2]).read()} if len(sys.argv) > 2 and sys.argv[2] else {}
request = urllib.request.Request(sys.argv[1], headers=headers)
try:
    answer = urllib.request.urlopen(request, timeout=5, context=context)
    print(answer.status, len(answer.read()))
except urllib.error.HTTPError as error:
    print(error.code)
"""
SECRETS = "/var/run/secrets/kubernetes.io/serviceaccount"


def kubectl(*words: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["kubectl", *words], input=stdin, capture_output=True, text=True, check=False, timeout=60
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
    """Two pods that serve HTTP, with names of a headless Service, one of them behind a Service of its own."""
    name = f"bringup-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    try:
        # A pod that comes before its service account is refused.
        kubectl("wait", "--for=jsonpath={.metadata.name}=default", "serviceaccount/default",
                "--namespace", name)  # fmt: skip
        items = [*(pod(one, image) for one in ("a", "b")), service("peers", "None"), service("web", None)]
        kubectl("apply", "--namespace", name, "--filename=-",
                stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))  # fmt: skip
        kubectl("wait", "--for=condition=Ready", "pod/a", "pod/b", "--timeout=40s", "--namespace", name)
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


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
        },
    }


def service(name: str, address: str | None) -> dict[str, Any]:
    selector = {"app": "bringup"} if address else {"one": "a"}
    spec = {"selector": selector, "ports": [{"port": PORT}], **({"clusterIP": address} if address else {})}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def inside(namespace: str, code: str, *arguments: str) -> str:
    return kubectl(
        "exec", "b", "--namespace", namespace, "--", "python3", "-c", code, *arguments
    ).strip()  # fmt: skip


def test_a_headless_service_names_each_pod(namespace: str) -> None:
    name = f"a.peers.{namespace}.svc.cluster.local"
    address = kubectl("get", "pod", "a", "--namespace", namespace, "--output=jsonpath={.status.podIP}")
    found = inside(namespace, "import socket, sys; print(socket.gethostbyname(sys.argv[1]))", name)
    assert found == address


def test_an_unknown_name_is_refused_at_once(namespace: str) -> None:
    code = (
        "import socket\ntry: print(socket.gethostbyname('nobody.peers'))\n"
        "except socket.gaierror as error: print(error.errno)"
    )
    assert inside(namespace, code) == str(socket.EAI_NONAME)


def test_a_pod_reaches_another_by_its_short_name(namespace: str) -> None:
    assert inside(namespace, GET, f"http://a.peers:{PORT}/").startswith("200")


def test_a_service_address_leads_to_its_pod(namespace: str) -> None:
    address = kubectl(
        "get", "service", "web", "--namespace", namespace, "--output=jsonpath={.spec.clusterIP}"
    )
    assert inside(namespace, GET, f"http://{address}:{PORT}/").startswith("200")
    assert "GET /" in kubectl("logs", "a", "--namespace", namespace)


def test_s3_answers_pods_and_refuses_a_wrong_secret(namespace: str) -> None:
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

    assert inside(namespace, GET, url(os.environ["AWS_SECRET_ACCESS_KEY"])).startswith("200")
    assert inside(namespace, GET, url("wrong")) == "403"


def test_a_plain_service_account_and_nobody_are_refused(namespace: str) -> None:
    secrets = f"https://kubernetes.default/api/v1/namespaces/{namespace}/secrets"
    ca = f"{SECRETS}/ca.crt"
    assert inside(namespace, GET, secrets, f"{SECRETS}/token", ca) == "403"
    assert inside(namespace, GET, secrets, "", ca) == "403"
