"""MPIJob as strategy Horovod: dtj's own mpirun in place of the launcher's."""

from __future__ import annotations

import shlex

from dtj.api.job import Manifest
from dtj.convert.form import MPIJobSpec, Replica
from dtj.convert.mpirun import Launch, NoProgram, lost_options, taken_apart
from dtj.convert.notes import Notes
from dtj.convert.replicas import Role, common_spec, read_role
from dtj.convert.run_policy import other_role_restarts, retries_of

_PATH = "spec.mpiReplicaSpecs"


def horovod_spec(spec: MPIJobSpec, policy: Manifest, notes: Notes) -> tuple[Manifest, Manifest]:
    """Spec and run policy of the job; the notes say why where it can't be one."""
    replicas = {key.lower(): (key, replica) for key, replica in spec.mpi_replica_specs.items()}
    _tell_of_the_rest(spec, notes)
    if set(replicas) != {"launcher", "worker"} or not replicas["worker"][1].replicas:
        notes.refuse(
            _PATH, ", ".join(spec.mpi_replica_specs) or None, "must have Launcher and Worker, and no other"
        )
        return {}, policy
    launcher = _role("launcher", *replicas["launcher"], spec, notes)
    worker = _role("worker", *replicas["worker"], spec, notes)
    policy = retries_of(replicas["launcher"][1].restart_policy, launcher.path, policy, notes)
    other_role_restarts(replicas["worker"][1].restart_policy, worker.path, notes)
    if launcher.replicas != 1:
        notes.tell(f"{launcher.path}.replicas", launcher.replicas, "now 1")
        launcher.replicas = 1
    if spec.run_launcher_as_worker:
        worker.replicas += 1
        notes.tell(
            "spec.runLauncherAsWorker",
            True,
            f"now one worker more: {worker.replicas}; the launcher trains nothing",
        )
    if launcher.accelerators:
        notes.tell(
            f"{launcher.path}.template.spec.containers",
            launcher.accelerators,
            "left out: the launcher trains nothing",
        )
        launcher.accelerators = {}
    _let_workers_serve_ssh(worker, notes)
    where = f"{launcher.path}.template.spec.containers.command"
    words = [*launcher.program[0], *launcher.program[1]]
    try:
        launch = taken_apart(words)
    except NoProgram as error:
        notes.refuse(
            where,
            shlex.join(words) or None,
            f"{error}; write it as a list of words: mpirun, its options, the program",
        )
        return {}, policy
    launcher.program, worker.program = (launch.program, []), ([], [])
    ranks = worker.replicas * spec.slots_per_worker
    _tell_of_the_options(launch, where, ranks, notes)
    _give_ranks(launch, launcher, worker, where, notes)
    made = {"strategy": "Horovod", **common_spec([worker, launcher], notes)}
    made["replicaSpecs"] = {
        role: own for role, own in made["replicaSpecs"].items() if own or role == "worker"
    }
    if spec.slots_per_worker != (made["replicaSpecs"]["worker"].get("gpus") or 1):
        made["horovod"] = {"slotsPerWorker": spec.slots_per_worker}
    return made, policy


def _role(name: str, key: str, replica: Replica, spec: MPIJobSpec, notes: Notes) -> Role:
    return read_role(name, f"{_PATH}.{key}", replica, spec.main_container, notes)


def _let_workers_serve_ssh(worker: Role, notes: Notes) -> None:
    """Put dtj's sshd in place of the worker's own program, and of the probe that knew its port."""
    where = f"{worker.path}.template.spec.containers"
    words = [word for part in worker.program for word in part]
    if words:
        notes.tell(f"{where}.command", shlex.join(words), "left out: dtj starts sshd itself")
    probe = worker.container.pop("readinessProbe", None)
    if probe is not None:
        notes.tell(f"{where}.readinessProbe", probe, "left out: dtj has its own")


def _tell_of_the_options(launch: Launch, where: str, ranks: int, notes: Notes) -> None:
    notes.tell(where, shlex.join(launch.starter), f"left out: dtj runs mpirun itself, with {ranks} ranks")
    if launch.ranks not in (None, ranks):
        notes.tell(f"{where}[-np]", launch.ranks, f"now {ranks} ranks: every slot of every worker")
    for name, value in lost_options(launch.starter):
        notes.tell(f"{where}[-mca {name}]", value, "left out: dtj sets it itself")
    if launch.elastic:
        notes.tell(
            f"{where}[elastic]",
            " ".join(launch.elastic),
            f"left out: dtj's Horovod is not elastic; {ranks} ranks, started again together when one is lost",
        )


def _give_ranks(launch: Launch, launcher: Role, worker: Role, where: str, notes: Notes) -> None:
    """The environment that mpirun's options gave the ranks, and their folder."""
    for name, value in launch.env.items():
        for role in (launcher, worker):
            role.env[name] = {"name": name, "value": value}
        notes.tell(f"{where}[{name}]", value, f"now env {name}, of every replica")
    for name in launch.exported:
        if name in launcher.env:
            worker.env[name] = launcher.env[name]
            notes.tell(f"{where}[-x {name}]", None, f"now env {name}, of every replica")
        else:
            notes.tell(f"{where}[-x {name}]", None, "left out: ranks have it from the worker's image")
    if launch.workdir is not None:
        launcher.container["workingDir"] = launch.workdir
        notes.tell(
            f"{where}[-wdir]", launch.workdir, "now workingDir of the launcher, which mpirun takes over"
        )


def _tell_of_the_rest(spec: MPIJobSpec, notes: Notes) -> None:
    if spec.mpi_implementation != "OpenMPI":
        notes.refuse(
            "spec.mpiImplementation",
            spec.mpi_implementation,
            "no equivalent: dtj starts ranks by Open MPI; build the image with it, and remove this field",
        )
    for key, value in spec.rest.items():
        if key == "sshAuthMountPath":
            notes.tell(f"spec.{key}", value, "left out: dtj mounts the job's key at /etc/dtj-ssh")
        elif key == "launcherCreationPolicy":
            if value == "AtStartup":
                notes.tell(f"spec.{key}", value, "left out: the launcher starts when every worker is ready")
        else:
            notes.tell(f"spec.{key}", value, "left out: no field of an MPIJob that dtj knows")
