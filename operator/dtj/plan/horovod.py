"""Horovod over MPI: workers run sshd, and a launcher runs mpirun on the workers.

The environment is that of mpi-operator v2beta1 (`OMPI_MCA_*`), and the `PRTE_MCA_*` names that Open MPI 5 reads
instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dtj.api.horovod import HOROVOD, LAUNCHER, WORKER
from dtj.api.job import Job, Manifest
from dtj.api.names import pod_name, ssh_secret_name
from dtj.api.pod_template import CONFIG_VOLUME, SSH_VOLUME, own_program
from dtj.api.shape import Replica, shape_of
from dtj.api.spec import ReplicaSpec, Resources
from dtj.plan.code import before_own_command, path_over_ssh
from dtj.plan.config_map import config_map, script
from dtj.plan.history import history_environment
from dtj.plan.model import Plan
from dtj.plan.pods import HIDDEN_GPUS, headless_service, metadata, ranks_info
from dtj.plan.recipe import Recipe, address
from dtj.plan.template_fields import resources_like_replicas
from dtj_trainer import contract

SCRIPTS = {"strategy.sh": script("horovod.sh"), "rank.sh": script("rank.sh")}
"""The scripts of the strategy: start.sh sources strategy.sh, and the launcher starts each rank by rank.sh."""
HOSTFILE = contract.CONFIG_DIR / "hostfile"
SSH_CONFIG_FILE = contract.CONFIG_DIR / "ssh_config"
# Scripts written for mpi-operator look for the hostfile in this folder.
_MPI_DIR = "/etc/mpi"
_SSH_ARGS = f"-F {SSH_CONFIG_FILE} -o ConnectionAttempts=10"
# In images without dtj-launch, this variable makes start.sh wait for the workers. dtj-launch waits in any case.
LAUNCHER_WAITS = {"DTJ_LAUNCHER_WAITS": "yes"}
_LAUNCHER_OTHERWISE = {
    "requests": {"ephemeral-storage": "100Mi"},
    "limits": {"cpu": "2", "ephemeral-storage": "10Gi"},
}


def launcher_spec(job: Job) -> ReplicaSpec:
    """Return the launcher of the spec, or the default one."""
    if LAUNCHER in job.given:
        return job.given[LAUNCHER]
    least = HOROVOD.roles[LAUNCHER].resources
    return ReplicaSpec(resources=Resources(**resources_like_replicas(job, least, _LAUNCHER_OTHERWISE)))


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
    return {
        contract.ENV_WORLD_SIZE: str(job.pods[WORKER] * job.procs),
        contract.ENV_SLOTS_PER_WORKER: str(job.procs),
    }


def ranks_that_do_not_wait(job: Job) -> dict[str, str]:
    """Return the variables of workers whose ranks the launcher's own command starts. Such ranks don't wait for the
    restore, so that sshd has to wait.
    """
    own = LAUNCHER in job.given and own_program(job.given[LAUNCHER])[0]
    return {contract.ENV_SSH_AFTER_RESTORE: "yes"} if own else {}


def horovod_plan(job: Job) -> Plan:
    """Return the objects of the job's current attempt. The job must have no faults."""
    size, secret = sizes(job), secret_name(job)
    ssh_mount = {"name": SSH_VOLUME, "mountPath": str(contract.SSH_DIR), "readOnly": True}
    # 0440 with fsGroup: ssh and sshd refuse a group-readable key of their own user, but accept one that root owns.
    volumes = [{"name": SSH_VOLUME, "secret": {"secretName": secret, "defaultMode": 0o440}}]
    worker = replace(
        worker_recipe(job, size | ranks_that_do_not_wait(job)), mounts=[ssh_mount], volumes=volumes
    )
    # The success of the launcher is that of the job. Its pod gets the history's variables, to record the success.
    launcher_env = size | _mpi_environment(job) | LAUNCHER_WAITS | history_environment(job)
    mpi_mount = {"name": CONFIG_VOLUME, "mountPath": _MPI_DIR, "readOnly": True}
    launcher = replace(
        launcher_recipe(job, launcher_spec(job), launcher_env),
        mounts=[ssh_mount, mpi_mount],
        volumes=volumes,
    )
    if rounds := worker.info.rounds:
        # The agents of all pods meet at the start barrier, which the launcher's agent serves.
        place = {
            contract.ENV_START_BARRIER: address(pod_name(job.name, LAUNCHER, 0), contract.START_BARRIER_PORT)
        }
        ports = {"start-barrier": contract.START_BARRIER_PORT}
        launcher = replace(
            launcher,
            info=replace(launcher.info, rounds=rounds),
            environment={**launcher.environment, **place},
            ports=ports,
        )
        worker = replace(worker, environment={**worker.environment, **place})

    def recipe(replica: Replica) -> Recipe:
        if replica.role == LAUNCHER:
            return launcher
        return replace(worker, info=replace(worker.info, index=replica.index))

    # The launcher may be created before the workers are ready if its start.sh waits for them. A command of its own
    # does not wait.
    at_once = serves_at_once(worker) and not launcher.own.get("command")
    return Plan(
        shape=shape_of(job, next_stage_on_running=at_once),
        service=headless_service(job),
        config=config_map(
            job,
            {
                "hostfile": hostfile(job, job.pods[WORKER]),
                "ssh_config": SSH_CONFIG,
                "sshd_config": sshd_config(_KEY, path_over_ssh(job)),
                **SCRIPTS,
            },
        ),
        ssh_secret=secret,
        recipe=recipe,
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
    slots = job.procs
    return "".join(
        f"{pod_name(job.name, WORKER, index)}.{job.domain} slots={slots}\n" for index in range(workers)
    )


def worker_recipe(job: Job, env: Mapping[str, str]) -> Recipe:
    """Return the recipe of worker 0, which runs sshd unless its template has a command."""
    return Recipe(
        spec=job.given[WORKER],
        info=ranks_info(job, WORKER, 0, pods=job.pods[WORKER], slots=job.procs),
        environment=env,
        ports={"ssh": contract.SSH_PORT},
        ready="ssh",
        before_own=(),
    )


def launcher_recipe(job: Job, spec: ReplicaSpec, env: Mapping[str, str]) -> Recipe:
    """Return the recipe of the launcher. A command of its own starts the ranks itself."""
    return Recipe(
        spec=spec,
        info=contract.PodInfo(role=LAUNCHER, index=0),
        program=[*job.own_command, *job.spec.args],
        environment=env,
        serves_progress=False,
        before_own=before_own_command(job),
    )


def serves_at_once(worker: Recipe) -> bool:
    """Return whether a running worker is soon ready: the template does not delay or replace the start of sshd."""
    probe = worker.container.get("readinessProbe")
    return worker.runs_start_script and probe == worker.listening["readinessProbe"]


def _mpi_environment(job: Job) -> dict[str, str]:
    slots = str(job.procs)
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
        **HIDDEN_GPUS,  # The launcher runs no rank, and must not occupy a GPU.
    }
