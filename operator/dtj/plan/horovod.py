"""Horovod over MPI: workers run sshd, and a launcher runs mpirun on the workers.

The environment is that of mpi-operator v2beta1 (`OMPI_MCA_*`), and the `PRTE_MCA_*` names that Open MPI 5 reads
instead.
"""

from __future__ import annotations

from dtj.api.horovod import HOROVOD, LAUNCHER, SSH_VOLUME, WORKER, slots_per_worker
from dtj.api.job import Job, Manifest
from dtj.api.names import host_name, ssh_secret_name
from dtj.api.pod_template import CONFIG_VOLUME, TRAINER_CONTAINER, own_program
from dtj.api.spec import ReplicaSpec, Resources
from dtj.plan.code import path_over_ssh, run_in_code
from dtj.plan.history import history_environment
from dtj.plan.model import Plan, Replica
from dtj.plan.pods import (
    HIDDEN_GPUS,
    headless_service,
    metadata,
    replica_pod,
    replicas,
    restoring_peers,
    trainer_container,
)
from dtj.plan.start import START, config_map, script
from dtj.plan.template_fields import resources_like_replicas
from dtj_trainer import contract

SCRIPTS = {"strategy.sh": script("horovod.sh"), "rank.sh": script("rank.sh")}
"""The scripts of the strategy: start.sh sources strategy.sh, and the launcher starts each rank by rank.sh."""
HOSTFILE = contract.CONFIG_DIR / "hostfile"
SSH_CONFIG_FILE = contract.CONFIG_DIR / "ssh_config"
# Scripts written for mpi-operator look for the hostfile in this folder.
_MPI_DIR = "/etc/mpi"
_SSH_ARGS = f"-F {SSH_CONFIG_FILE} -o ConnectionAttempts=10"
# start.sh reads the variable in images without dtj-launch. dtj-launch always waits.
LAUNCHER_WAITS = {"DTJ_LAUNCHER_WAITS": "yes"}
_LAUNCHER_OTHERWISE = {
    "requests": {"ephemeral-storage": "100Mi"},
    "limits": {"cpu": "2", "ephemeral-storage": "10Gi"},
}


def launcher_spec(job: Job) -> ReplicaSpec:
    """Return the launcher of the spec, or the default one."""
    least = HOROVOD.roles[LAUNCHER].resources
    default = ReplicaSpec(resources=Resources(**resources_like_replicas(job, least, _LAUNCHER_OTHERWISE)))
    return job.spec.replica_specs.launcher or default


def sshd_config(key: str, python_path: str = "") -> str:
    """Return the configuration of the workers' sshd. key: path of the private key. python_path: the value of
    PYTHONPATH in a session.
    """
    # Ranks that a launcher's own mpirun starts have no other environment than that of the ssh session.
    variables = f"SetEnv PYTHONPATH={python_path}\n" if python_path else ""
    return f"""\
Port {contract.SSH_PORT}
PidFile none
HostKey {key}
AuthorizedKeysFile {contract.SSH_DIR}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
DisableForwarding yes
# sshd logs the kubelet's probes, which connect and hang up, as errors. The launcher reports real problems.
LogLevel FATAL
{variables}"""


def ssh_config(key: str, known_hosts: str, unknown: str = "yes") -> str:
    """Return the configuration of the launcher's ssh. key: path of the private key. known_hosts: path of the file
    with the hosts' key. unknown: the value of StrictHostKeyChecking.
    """
    return f"""\
Host *
  Port {contract.SSH_PORT}
  IdentityFile {key}
  IdentitiesOnly yes
  BatchMode yes
  StrictHostKeyChecking {unknown}
  UserKnownHostsFile {known_hosts}
  GlobalKnownHostsFile /dev/null
  ServerAliveInterval 5
  ServerAliveCountMax 6
  LogLevel ERROR
"""


_KEY = f"{contract.SSH_DIR}/ssh_key"
SSH_CONFIG = ssh_config(_KEY, f"{contract.SSH_DIR}/known_hosts")


def sizes(job: Job) -> dict[str, str]:
    """Return the variables with the number of ranks and of slots."""
    worker = job.spec.worker
    return {
        contract.ENV_WORLD_SIZE: str(worker.replicas * slots_per_worker(job.spec)),
        contract.ENV_SLOTS_PER_WORKER: str(slots_per_worker(job.spec)),
    }


def ranks_that_do_not_wait(job: Job) -> dict[str, str]:
    """Return the variables of workers whose ranks the launcher's own command starts. Such ranks don't wait for the
    restore, so that sshd has to wait.
    """
    own = own_program(job.spec.replica_specs.launcher)[0]
    return {contract.ENV_SSH_AFTER_RESTORE: "yes"} if own else {}


def pod_info(job: Job, role: str, index: int) -> contract.PodInfo:
    """Return the PodInfo of a pod. Only workers run ranks."""
    if role == LAUNCHER:
        return contract.PodInfo(role=role, index=index)
    return contract.PodInfo(
        role=role,
        index=index,
        slots=slots_per_worker(job.spec),
        part="primary",
        restores=True,
        reads_data=True,
        peers=restoring_peers(job, {WORKER: job.spec.worker.replicas}),
    )


def horovod_plan(job: Job) -> Plan:
    """Return the objects of the job's current attempt. The job must have no faults."""
    attempt = job.status.current_attempt
    worker = job.spec.worker
    launcher = launcher_spec(job)
    program = [*job.spec.own_command, *job.spec.args]
    size = sizes(job)
    workers = replicas(job, WORKER, worker.replicas, attempt)
    launchers = replicas(job, LAUNCHER, 1, attempt)
    launcher_env = size | _mpi_environment(job) | LAUNCHER_WAITS
    worker_env = size | ranks_that_do_not_wait(job)
    worker_extra, launcher_extra = _worker_extra(job), _launcher_extra(job)

    def pod(replica: Replica) -> Manifest:
        info = pod_info(job, replica.role, replica.index)
        if replica.role == WORKER:
            return replica_pod(
                job, replica, worker, info, command=[*START], env=worker_env, extra=worker_extra
            )
        command = [*START, *program]
        # The launcher decides the job, and so it records a success.
        env = launcher_env | history_environment(job)
        manifest = replica_pod(job, replica, launcher, info, command=command, env=env, extra=launcher_extra)
        run_in_code(job, launcher, trainer_container(manifest))
        return manifest

    return Plan(
        service=headless_service(job),
        config=config_map(
            job,
            {
                "hostfile": hostfile(job, worker.replicas),
                "ssh_config": SSH_CONFIG,
                "sshd_config": sshd_config(_KEY, path_over_ssh(job)),
                **SCRIPTS,
            },
        ),
        ssh_secret=secret_name(job),
        stages=(workers, launchers),
        pod=pod,
        decisive=(launchers[0].name,),
        reporter=workers[0].name,
        serves_progress=frozenset(replica.name for replica in workers),
        # start.sh waits for the workers. A command of the launcher's own does not.
        next_stage_on_running=serves_at_once(pod(workers[0])) and not own_program(launcher)[0],
    )


def secret_name(job: Job) -> str:
    """Return the name of the Secret with the job's key pair. The status of a job holds the name if it differs."""
    return job.status.ssh_secret or ssh_secret_name(job.name, job.short_uid)


def ssh_secret(job: Job, private_key: str, public_key: str) -> Manifest:
    """Return the Secret with the job's key pair. The key authorizes logins at the workers' sshd, and is also the
    workers' host key, so that the launcher verifies the hosts.

    private_key: OpenSSH private key. public_key: one line, `ssh-ed25519 AAAA…`.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, secret_name(job)),
        "immutable": True,
        "stringData": {
            "ssh_key": private_key,
            "authorized_keys": f"{public_key}\n",
            "known_hosts": f"* {public_key}\n",
        },
    }


def hostfile(job: Job, workers: int) -> str:
    """Return Open MPI's list of hosts."""
    slots = slots_per_worker(job.spec)
    return "".join(
        f"{host_name(job.name, job.namespace, WORKER, index)} slots={slots}\n" for index in range(workers)
    )


def worker_container() -> Manifest:
    """Return the fields of a worker's container that other replicas don't have."""
    return {
        "name": TRAINER_CONTAINER,
        "ports": [
            {"name": "ssh", "containerPort": contract.SSH_PORT},
            {"name": "progress", "containerPort": contract.PROGRESS_PORT},
        ],
        "readinessProbe": {
            "tcpSocket": {"port": contract.SSH_PORT},
            "periodSeconds": 2,
            "failureThreshold": 10,
        },
    }


def serves_at_once(worker: Manifest) -> bool:
    """Return whether a running worker is soon ready: the template does not delay or replace the start of sshd."""
    container = trainer_container(worker)
    probe = worker_container()["readinessProbe"]
    return bool(container["command"] == [*START] and container.get("readinessProbe") == probe)


def _worker_extra(job: Job) -> Manifest:
    return {
        "containers": [{**worker_container(), "volumeMounts": [_ssh_mount()]}],
        "volumes": [_ssh_volume(job)],
    }


def _launcher_extra(job: Job) -> Manifest:
    return {
        "containers": [
            {
                "name": TRAINER_CONTAINER,
                "volumeMounts": [
                    _ssh_mount(),
                    {"name": CONFIG_VOLUME, "mountPath": _MPI_DIR, "readOnly": True},
                ],
            }
        ],
        "volumes": [_ssh_volume(job)],
    }


def _ssh_mount() -> Manifest:
    return {"name": SSH_VOLUME, "mountPath": str(contract.SSH_DIR), "readOnly": True}


def _ssh_volume(job: Job) -> Manifest:
    # 0440 with fsGroup: ssh and sshd refuse a group-readable key of their own user, but accept one that root owns.
    return {
        "name": SSH_VOLUME,
        "secret": {"secretName": secret_name(job), "defaultMode": 0o440},
    }


def _mpi_environment(job: Job) -> dict[str, str]:
    slots = str(slots_per_worker(job.spec))
    return {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": str(HOSTFILE),
        "OMPI_MCA_orte_set_default_slots": slots,
        "OMPI_MCA_plm_rsh_agent": "ssh",
        "OMPI_MCA_plm_rsh_args": _SSH_ARGS,
        "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
        "PRTE_MCA_prte_default_hostfile": str(HOSTFILE),
        "PRTE_MCA_prte_set_default_slots": slots,
        "PRTE_MCA_plm_ssh_agent": "ssh",
        "PRTE_MCA_plm_ssh_args": _SSH_ARGS,
        **HIDDEN_GPUS,  # the launcher runs no rank
    }
