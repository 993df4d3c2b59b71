"""The example manifests: what they show, and the objects of manifests/eks that examples name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

MANIFESTS = Path(__file__).parents[3] / "manifests"
EXAMPLES = sorted((MANIFESTS / "examples").glob("*.yaml"))


def test_the_examples_are_few_and_differ_in_what_they_show() -> None:
    assert [file.stem for file in EXAMPLES] == [
        "fashion-mnist-ddp", "fashion-mnist-horovod", "fashion-mnist-ps", "gpu-spot", "keras-horovod",
        "ps-synchronous", "shared-volume",
    ]  # fmt: skip


def test_the_gpu_example_fits_the_nodes_of_eks() -> None:
    job = yaml.safe_load((MANIFESTS / "examples/gpu-spot.yaml").read_text())
    cluster = yaml.safe_load((MANIFESTS / "eks/cluster.yaml").read_text())
    pool, _ = yaml.safe_load_all((MANIFESTS / "eks/karpenter.yaml").read_text())
    (group,) = [group for group in cluster["managedNodeGroups"] if group.get("spot")]
    template = pool["spec"]["template"]
    selector = job["spec"]["accelerator"]["nodeSelector"]

    for labels, taints in (
        (group["labels"], group["taints"]),
        (template["metadata"]["labels"], template["spec"]["taints"]),
    ):
        assert selector.items() <= labels.items()
        assert [taint["key"] for taint in taints] == ["nvidia.com/gpu"], "what dtj's pods with gpus tolerate"
        assert labels["nvidia.com/gpu.present"] == "true", "where the device plugin runs"
    assert (group["minSize"], group["propagateASGTags"]) == (0, True)
    account = {"name": "trainer", "namespace": job["metadata"]["namespace"]}
    assert account in [made["metadata"] for made in cluster["iam"]["serviceAccounts"]]
    for role in job["spec"]["replicaSpecs"].values():
        assert role["template"]["spec"]["serviceAccountName"] == account["name"]


def test_the_policy_of_eks_is_about_the_prefixes_of_the_example() -> None:
    spec = yaml.safe_load((MANIFESTS / "examples/gpu-spot.yaml").read_text())["spec"]
    statements: list[dict[str, Any]] = json.loads((MANIFESTS / "eks/s3-policy.json").read_text())["Statement"]
    bucket, _, prefix = spec["artifacts"]["uri"].removeprefix("s3://").partition("/")
    data = spec["data"]["uri"].removeprefix("s3://").partition("/")[0]

    assert [statement["Resource"] for statement in statements] == [
        f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/{prefix}/*",
        f"arn:aws:s3:::{data}", f"arn:aws:s3:::{data}/*",
    ]  # fmt: skip
    assert statements[0]["Condition"] == {"StringLikeIfExists": {"s3:prefix": f"{prefix}/*"}}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_data_are_of_the_kind_that_the_program_reads(file: Path) -> None:
    """The built-in programs read grey pictures in MNIST's layout, nothing else."""
    assert yaml.safe_load(file.read_text())["spec"]["data"]["uri"].endswith("fashion-mnist")
