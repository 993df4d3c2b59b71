"""Horovod delegated to Kubeflow's mpi-operator: an MPIJob whose pods are like those that dtj would create.

mpi-operator sets the pods' names, the hostfile, a key pair, and the variables of Open MPI 4. An MPIJob is one
attempt, and mpi-operator restarts no launcher. dtj's status counts the attempts, and dtj handles restarts, deadlines
and suspension. Therefore the operator only ever creates and deletes an MPIJob, and leaves its `runPolicy.suspend` to
Kueue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dtj.api.horovod import LAUNCHER, WORKER
from dtj.api.identity import LABEL_ATTEMPT, LABEL_INDEX, LABEL_UID
from dtj.api.job import Job, Manifest
from dtj.api.mpijob import (
    HOSTFILE,
    INDEX_LABEL,
    MPIJOB_API_VERSION,
    MPIJOB_KIND,
    QUEUE_ANNOTATIONS,
    QUEUE_LABELS,
)
from dtj.api.pod_template import own_program
from dtj.api.shape import Replica, Shape
from dtj.plan.code import path_over_ssh
from dtj.plan.config_map import config_map, script
from dtj.plan.horovod import (
    LAUNCHER_WAITS,
    SCRIPTS,
    SSH_CONFIG_FILE,
    horovod_plan,
    hostfile,
    launcher_recipe,
    launcher_spec,
    ranks_that_do_not_wait,
    sizes,
    ssh_config,
    sshd_config,
    worker_recipe,
)
from dtj.plan.model import Plan
from dtj.plan.pods import Common, complete, metadata, replica_pod, trainer_container
from dtj.plan.recipe import Recipe
from dtj_trainer import contract

_SCRIPT = "mpijob.sh"
_KEY = f"{contract.SSH_DIR}/id_rsa"
_KNOWN_HOSTS = str(contract.ROOT / contract.RUN / "known_hosts")
# Fields of a pod spec that mpi-operator sets itself.
_PODS_OWN = ("hostname", "subdomain", "restartPolicy")


def mpijob_plan(job: Job) -> Plan:
    """Return the MPIJob of the job's current attempt, and what its pods need of dtj. The job must have no faults."""
    native = horovod_plan(job)
    shape = native.shape
    workers = len(shape.roles[WORKER])
    # A launcher with its own command does not run mpijob.sh, which writes known_hosts.
    unknown = "accept-new" if own_program(job.spec.replica_specs.launcher)[0] else "yes"
    config = config_map(
        job,
        {
            "hostfile": hostfile(job, workers),
            "ssh_config": ssh_config(_KEY, _KNOWN_HOSTS, unknown),
            "sshd_config": sshd_config(_KEY, path_over_ssh(job)),
            **SCRIPTS,
            _SCRIPT: script(_SCRIPT),
        },
    )
    return replace(native, config=config, ssh_secret=None, mpijob=_mpijob(job, shape))


def _mpijob(job: Job, shape: Shape) -> Manifest:
    # All pods of a role share the template of the first one.
    first = {replica.role: replica for replica in reversed(shape.replicas)}
    workers = len(shape.roles[WORKER])
    own_metadata = metadata(job, job.name, {LABEL_ATTEMPT: str(job.attempt)})
    own_metadata["labels"] |= _selected(QUEUE_LABELS, job.labels)
    if annotations := _selected(QUEUE_ANNOTATIONS, job.annotations):
        own_metadata["annotations"] = annotations
    return {
        "apiVersion": MPIJOB_API_VERSION,
        "kind": MPIJOB_KIND,
        "metadata": own_metadata,
        "spec": {
            "slotsPerWorker": job.procs,
            "sshAuthMountPath": str(contract.SSH_DIR),
            "mpiImplementation": "OpenMPI",
            # Without this field, the launcher would start before the workers are scheduled, and give up its wait.
            # mpi-operator ignores the field for an MPIJob that is suspended when it is created.
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {
                # Workers that mpi-operator deletes after a failure would look like the cause of the failure.
                "cleanPodPolicy": "None",
                "backoffLimit": 0,
                # The gang consists of the workers alone, because the launcher is created after the workers run.
                "schedulingPolicy": {"minAvailable": workers},
            },
            "mpiReplicaSpecs": {
                "Launcher": {
                    "replicas": 1,
                    "restartPolicy": "Never",
                    "template": _launcher(job, first[LAUNCHER]),
                },
                "Worker": {
                    "replicas": workers,
                    "restartPolicy": "Never",
                    "template": _worker(job, first[WORKER]),
                },
            },
        },
    }


def _selected(names: tuple[str, ...], given: Mapping[str, str]) -> dict[str, str]:
    return {name: given[name] for name in names if name in given}


def _worker(job: Job, first: Replica) -> Manifest:
    template = _template(job, first, worker_recipe(job, sizes(job) | ranks_that_do_not_wait(job)))
    container = trainer_container(template)
    container["env"] = list(map(_with_own_index, container["env"]))
    return template


def _with_own_index(variable: Manifest) -> Manifest:
    """Make the variable take the worker's index from mpi-operator's label, because all workers share one template."""
    match variable:
        case {"name": contract.ENV_INDEX}:
            index = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX_LABEL}']"}}
            return {"name": contract.ENV_INDEX, "valueFrom": index}
        case {"name": contract.ENV_POD, "value": value}:
            # The kubelet expands a variable that is defined earlier in the list.
            return {**variable, "value": value.replace('"index": 0', f'"index": $({contract.ENV_INDEX})')}
        case _:
            return variable


def _launcher(job: Job, first: Replica) -> Manifest:
    # If Kueue suspends the MPIJob at its creation, mpi-operator later starts the launcher together with the workers:
    # LAUNCHER_WAITS makes the launcher wait for the workers.
    env = sizes(job) | _mpi_environment(job) | LAUNCHER_WAITS
    return _template(job, first, launcher_recipe(job, launcher_spec(job), env))


def _template(job: Job, first: Replica, recipe: Recipe) -> Manifest:
    common = Common(job)
    ours = complete(common, first, replace(recipe, script=_SCRIPT))
    pod = replica_pod(common, first, ours)
    labels = {name: value for name, value in pod["metadata"]["labels"].items() if name != LABEL_INDEX}
    own_metadata: Manifest = {"labels": labels | {LABEL_UID: job.uid}}
    if annotations := pod["metadata"].get("annotations"):
        own_metadata["annotations"] = annotations
    return {
        "metadata": own_metadata,
        "spec": {name: value for name, value in pod["spec"].items() if name not in _PODS_OWN},
    }


def _mpi_environment(job: Job) -> dict[str, str]:
    """Return variables that mpi-operator does not set: those of Open MPI 5, and the path of ssh's configuration."""
    agent = f"ssh -F {SSH_CONFIG_FILE}"
    return {
        "OMPI_MCA_plm_rsh_agent": agent,
        "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
        "PRTE_MCA_prte_default_hostfile": HOSTFILE,
        "PRTE_MCA_prte_set_default_slots": str(job.procs),
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_plm_ssh_args": "-o ConnectionAttempts=10",
    }
