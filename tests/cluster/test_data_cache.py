"""`spec.data.cache` on a claim: two pods fill the cache, and a later job reads blocks that the bucket lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.cluster.jobs import TORCH_EXAMPLE, Manifest, Namespace, example, kubectl, s3_client
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster
IMAGE = "dtj-trainer-horovod:0.1.0"
PICTURES, SIDE = 60, 128
READ = """
import argparse
import numpy as np
from dtj_trainer.train.options import DataOptions, add_data
parser = argparse.ArgumentParser()
add_data(parser)
examples = DataOptions(**vars(parser.parse_args())).load().train
ids = np.arange(len(examples))
examples.expect(iter([ids]))
print(len(examples), "examples, sum", examples.read(ids).pixels.sum())
"""


@pytest.fixture
def data_set(namespace: Namespace, tmp_path: Path) -> Iterator[str]:
    """The URI of a staged set of pictures, some 3 MB in several blocks."""
    for number in range(PICTURES + 2):
        split = "Test" if number >= PICTURES else "Training"
        path = tmp_path / split / str(number % 2) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
        Image.fromarray(noise).save(path)
    uri = f"s3://datasets/{namespace.name}"
    words = [sys.executable, "-m", "dtj_trainer.data.stage", tmp_path, uri, "--shard-megabytes=1"]
    environment = os.environ | {"AWS_ENDPOINT_URL_S3": os.environ["DTJ_TEST_S3_ENDPOINT"]}
    subprocess.run(words, env=environment | {"AWS_REGION": "us-east-1"}, check=True)
    yield uri
    remove(namespace.name)


@pytest.fixture
def claim(namespace: Namespace) -> Iterator[str]:
    """A claim for a folder of one node, which root owns, as a new volume of a cloud's disk."""
    name = f"{namespace.name}-cache"
    node = kubectl("get", "nodes", "--output=jsonpath={.items[0].metadata.name}")
    on_node(namespace, node, "mkdir", f"/node/{name}")
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": common
        | {
            "capacity": {"storage": "2Gi"},
            "local": {"path": f"/tmp/{name}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}},
        },
    }
    claimed = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "cache"},
        "spec": common | {"volumeName": name, "resources": {"requests": {"storage": "2Gi"}}},
    }
    namespace.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all([volume, claimed]))
    yield "cache"
    on_node(namespace, node, "rm", "-r", f"/node/{name}")
    kubectl("delete", "persistentvolume", name, "--wait=false")


def on_node(namespace: Namespace, node: str, *command: str) -> None:
    """Run a command as root on a node, whose /tmp is /node there."""
    name = f"as-root-{command[0]}"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "securityContext": {"runAsUser": 0},
            "containers": [
                {
                    "name": "root",
                    "image": IMAGE,
                    "command": list(command),
                    "volumeMounts": [{"name": "node", "mountPath": "/node"}],
                }
            ],
            "volumes": [{"name": "node", "hostPath": {"path": "/tmp"}}],
        },
    }
    namespace.kubectl("apply", "--filename=-", stdin=yaml.safe_dump(pod))
    namespace.kubectl(
        "wait",
        f"pod/{name}",
        "--for=jsonpath={.status.phase}=Succeeded",
        f"--timeout={60 * PATIENCE}s",
        timeout=70,
    )


def remove(prefix: str, ending: str = "") -> int:
    """Remove the objects of a set whose names end so. Returns their number."""
    client = s3_client()
    listed = client.list_objects_v2(Bucket="datasets", Prefix=f"{prefix}/").get("Contents", [])
    keys = [entry["Key"] for entry in listed if entry["Key"].endswith(ending)]
    for key in keys:
        client.delete_object(Bucket="datasets", Key=key)
    return len(keys)


def test_a_later_job_reads_from_the_cache_what_the_bucket_has_no_more(
    namespace: Namespace, data_set: str, claim: str
) -> None:
    data = {"uri": data_set, "cache": {"size": "1Gi", "persistentVolumeClaim": {"claimName": claim}}}

    def reader(name: str) -> Manifest:
        return example(name, TORCH_EXAMPLE, command=["python", "-c", READ], args=[], data=data)

    first = namespace.apply(reader("fills"))
    first.wait(120)
    printed = [first.artifacts().read(f"logs/attempt-1/rank-{rank}.log").decode() for rank in range(2)]
    assert f"{PICTURES} examples, sum" in printed[0]
    assert "is not used" not in "".join(printed)

    assert remove(namespace.name, ".tar") >= 3
    later = namespace.apply(reader("reads"))
    later.wait(120)
    again = later.artifacts().read("logs/attempt-1/rank-1.log").decode()
    assert again.splitlines()[-1] == printed[1].splitlines()[-1]
