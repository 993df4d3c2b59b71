"""The jobs of the benchmarks, and the objects that the operator creates for each job."""

from __future__ import annotations

from dtj.api.identity import API_VERSION, KIND, PLURAL
from dtj.api.job import Manifest, read_job
from dtj.plan.horovod import ssh_secret
from dtj.plan.job import plan_job
from dtj.reconcile.memory import new_key_pair

_PLURALS = {"Pod": "pods", "Service": "services", "ConfigMap": "configmaps", "Secret": "secrets"}
_SPECS: dict[str, Manifest] = {
    "Horovod": {"replicaSpecs": {"worker": {"replicas": 2}}},
    "ParameterServer": {"replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}}},
}
STRATEGIES = tuple(_SPECS)
# One pair for all: the operator makes its own for each job, which is work and not a request.
_KEYS = new_key_pair()


def job(name: str, namespace: str, strategy: str) -> Manifest:
    """1 launcher and 2 workers, or 1 chief, 2 workers and 1 ps."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "strategy": strategy,
            "image": "trainer:1",
            "command": ["python", "train.py"],
            "args": ["--epochs=3"],
            **_SPECS[strategy],
        },
    }


def sized(name: str, namespace: str, strategy: str, workers: int) -> Manifest:
    """The same with so many workers."""
    manifest = job(name, namespace, strategy)
    roles = manifest["spec"]["replicaSpecs"]
    manifest["spec"]["replicaSpecs"] = {**roles, "worker": {"replicas": workers}}
    return manifest


def secret_of(manifest: Manifest) -> Manifest | None:
    """The Secret that the operator makes for a job, where its strategy has one."""
    planned = read_job(manifest)
    return ssh_secret(planned, *_KEYS) if plan_job(planned).ssh_secret else None


def objects(name: str, namespace: str, strategy: str) -> list[Manifest]:
    """What the operator makes for such a job, in order, without an owner and the labels by which it watches."""
    manifest = job(name, namespace, strategy)
    manifest["metadata"]["uid"] = "00000000-bare"
    planned = read_job(manifest)
    plan = plan_job(planned)
    made = [plan.service, plan.config, *plan.pods]
    if plan.ssh_secret:
        made.insert(1, ssh_secret(planned, *_KEYS))
    return [
        one | {"metadata": {"name": one["metadata"]["name"], "labels": {"bench": "bare"}}} for one in made
    ]


def pods_in(strategy: str) -> int:
    """How many pods such a job has."""
    return len([made for made in objects("any", "any", strategy) if made["kind"] == "Pod"])


def decisive(name: str, strategy: str) -> str:
    """The pod of a job whose success is the job's."""
    return f"{name}-{'launcher' if strategy == 'Horovod' else 'chief'}-0"


def jobs_path(namespace: str) -> str:
    """The collection of jobs."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}"


def collection(namespace: str, kind: str) -> str:
    """The collection of one of the kinds that jobs are made of."""
    return f"/api/v1/namespaces/{namespace}/{_PLURALS[kind]}"


def collections(namespace: str) -> list[str]:
    """All that a run leaves behind, but its Services: those can only be deleted one by one."""
    core = f"/api/v1/namespaces/{namespace}"
    return [jobs_path(namespace), *(f"{core}/{name}" for name in ("pods", "configmaps", "secrets", "events"))]
