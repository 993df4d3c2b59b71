"""MPIJob as strategy Horovod: dtj's own mpirun in place of the launcher's where both start the same ranks, else the
launcher's command as it is written.
"""

from __future__ import annotations

import shlex

from dtj.api.job import Manifest
from dtj.api.names import pod_name, service_name
from dtj.convert.form import MPIJobSpec, Replica
from dtj.convert.launcher import obstacles
from dtj.convert.mpirun import Launch, NoProgram, taken_apart
from dtj.convert.notes import Notes
from dtj.convert.ranks import NeverStarts, Uneven, ranks_of_each_worker
from dtj.convert.replicas import Role, common_spec, read_role
from dtj.convert.run_policy import Defaults, other_role_restarts, retries_of
from dtj.convert.security import secure
from dtj_trainer import contract

_PATH = "spec.mpiReplicaSpecs"
_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
_LONGEST_LINE = 120
"""Options without effect are told in one line up to so many characters, else one a line."""


def horovod_spec(
    job: str, by_ssh: bool, spec: MPIJobSpec, policy: Manifest, defaults: Defaults, notes: Notes
) -> tuple[Manifest, Manifest]:
    """Spec and run policy of the job; the notes say why where it can't be one.

    job: its name. by_ssh: whether mpi-operator starts ranks by ssh in this version, and not by kubectl exec.
    """
    replicas = {key.lower(): (key, replica) for key, replica in spec.mpi_replica_specs.items()}
    _tell_of_the_rest(spec, notes)
    if set(replicas) != {"launcher", "worker"} or not replicas["worker"][1].replicas:
        notes.refuse(
            _PATH, ", ".join(spec.mpi_replica_specs) or None, "must have Launcher and Worker, and no other"
        )
        return {}, policy
    launcher = _role("launcher", *replicas["launcher"], spec, notes)
    worker = _role("worker", *replicas["worker"], spec, notes)
    policy = retries_of(replicas["launcher"][1].restart_policy, launcher.path, policy, defaults, notes)
    other_role_restarts(replicas["worker"][1].restart_policy, worker.path, notes)
    _settle_launcher(spec, launcher, worker, notes)
    _let_workers_serve_ssh(worker, by_ssh, notes)
    where = f"{launcher.path}.template.spec.containers.command"
    slots, as_root = _start_ranks(job, by_ssh, spec, launcher, worker, where, notes)
    secure([worker, launcher], as_root, notes)
    made = {"strategy": "Horovod", **common_spec([worker, launcher])}
    made["replicaSpecs"] = {
        role: own for role, own in made["replicaSpecs"].items() if own or role == "worker"
    }
    if slots != (made["replicaSpecs"]["worker"].get("gpus") or 1):
        made["horovod"] = {"slotsPerWorker": slots}
    return made, policy


def _role(name: str, key: str, replica: Replica, spec: MPIJobSpec, notes: Notes) -> Role:
    return read_role(name, f"{_PATH}.{key}", replica, spec.main_container, notes)


def _settle_launcher(spec: MPIJobSpec, launcher: Role, worker: Role, notes: Notes) -> None:
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


def _let_workers_serve_ssh(worker: Role, by_ssh: bool, notes: Notes) -> None:
    """Put dtj's sshd in place of the worker's own program, and of the probe that knew its port."""
    where = f"{worker.path}.template.spec.containers"
    words = [word for part in worker.program for word in part]
    if words:
        notes.tell(
            f"{where}.command",
            shlex.join(words),
            "left out: dtj starts sshd itself; what the command prepares besides belongs into the image or an "
            "initContainer",
        )
    worker.program = ([], [])
    probe = worker.container.pop("readinessProbe", None)
    if probe is not None:
        notes.tell(f"{where}.readinessProbe", probe, "left out: dtj has its own")
    if not by_ssh:
        notes.tell(
            f"{where}.image",
            worker.image,
            "must have sshd (openssh-server): dtj starts ranks by ssh, where this version of MPIJob has kubectl exec",
        )


def _start_ranks(
    job: str, by_ssh: bool, spec: MPIJobSpec, launcher: Role, worker: Role, where: str, notes: Notes
) -> tuple[int, bool]:
    """Give the launcher its program; slots of each worker, and whether mpirun runs as root."""
    words = [*launcher.program[0], *launcher.program[1]]
    if not words:
        notes.refuse(
            where, None, "required: dtj does not start the image's entrypoint; write that as the command"
        )
        return spec.slots_per_worker, False
    if not launcher.program[0]:
        notes.tell(where, None, "not given: args are the command now, and the image's entrypoint is not run")
    values = {name: variable.get("value") for name, variable in launcher.env.items()}
    hosts = [f"{pod_name(job, 'worker', index)}.{service_name(job)}" for index in range(worker.replicas)]
    try:
        launch = taken_apart(words, values)
        if launch.hydra:
            notes.refuse(
                where,
                shlex.join(launch.hydra),
                "belongs to MPICH or Intel MPI, and dtj starts ranks by Open MPI: build the image with it",
            )
            return spec.slots_per_worker, False
        slots = ranks_of_each_worker(launch, hosts, spec.slots_per_worker)
    except NeverStarts as error:
        notes.refuse(where, shlex.join(words), str(error))
        return spec.slots_per_worker, False
    except (NoProgram, Uneven) as error:
        return _run_as_written(by_ssh, spec, launcher, worker, where, str(error), notes)
    launcher.program = (launch.program, [])
    _tell_of_the_options(launch, where, worker.replicas, slots, spec.slots_per_worker, notes)
    _give_ranks(launch, launcher, worker, where, notes)
    return slots, launch.as_root


def _run_as_written(
    by_ssh: bool, spec: MPIJobSpec, launcher: Role, worker: Role, where: str, why: str, notes: Notes
) -> tuple[int, bool]:
    """Leave the launcher its own command: dtj gives it hosts and ssh as mpi-operator does."""
    command, args = launcher.program
    launcher.program, launcher.keeps_command = ((command, args) if command else (args, [])), True
    words = [*command, *args]
    for name, remedy in obstacles(words, spec.ssh_auth_mount_path):
        notes.refuse(where, name, remedy)
    ranks = worker.replicas * spec.slots_per_worker
    notes.tell(
        where,
        None,
        f"{why}: it runs as it is written, as the launcher's own command, with the hosts of all {ranks} slots in "
        "/etc/mpi/hostfile and Open MPI's settings for ssh in its environment. dtj does not check how many ranks it "
        "starts, and uploads no logs of launcher and ranks",
    )
    if not by_ssh:
        notes.tell(
            where,
            None,
            "ranks have the environment of an ssh session: of the image's PATH and LD_LIBRARY_PATH, and of the "
            "workers' env, they get what mpirun exports by -x",
        )
    return spec.slots_per_worker, any("allow-run-as-root" in word for word in words)


def _tell_of_the_options(
    launch: Launch, where: str, workers: int, slots: int, before: int, notes: Notes
) -> None:
    started = "horovodrun" if launch.by_horovodrun else "mpirun"
    needs = "; the image must have Open MPI, and Horovod built with it" if launch.by_horovodrun else ""
    counting = [word for words in launch.counting for word in words]
    notes.tell(
        where,
        shlex.join([launch.starter[0], *counting]),
        f"now dtj's own {'mpirun in its place' if launch.by_horovodrun else 'call of it'}, which starts "
        f"{workers * slots} ranks, {slots} in each of {workers} workers{needs}",
    )
    if slots != before:
        notes.tell(
            "spec.slotsPerWorker", before, f"now {slots}: so many ranks {started} starts in each worker"
        )
    if slots > before:
        # As mpirun does where it knows that a host has more ranks than slots.
        launch.env.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    lost = [shlex.join(words) for words in launch.dropped]
    lines = [" ".join(lost)] if len(" ".join(lost)) <= _LONGEST_LINE else lost
    for line in filter(None, lines):
        notes.tell(where, line, "left out: dtj's mpirun has options of its own")
    if launch.elastic:
        elastic = " ".join(f"--{name} {value}" for name, value in launch.elastic.items())
        notes.tell(
            f"{where}[elastic]",
            elastic,
            f"left out: dtj's Horovod is not elastic; {workers * slots} ranks, started again together when one is "
            "lost",
        )


def _give_ranks(launch: Launch, launcher: Role, worker: Role, where: str, notes: Notes) -> None:
    """The environment that mpirun's options gave the ranks, and their folder."""
    if launch.path is not None:
        launcher.env[contract.ENV_MPIRUN] = {"name": contract.ENV_MPIRUN, "value": launch.path}
        notes.tell(where, launch.path, f"now env {contract.ENV_MPIRUN} of the launcher: the same mpirun runs")
    if launch.as_root:
        for name in _AS_ROOT:
            launcher.env[name] = {"name": name, "value": "1"}
        notes.tell(f"{where}[--allow-run-as-root]", None, f"now env {' and '.join(_AS_ROOT)} of the launcher")
    for name, value in launch.env.items():
        for role in (launcher, worker):
            role.env[name] = {"name": name, "value": value}
        notes.tell(f"{where}[{name}]", value, f"now env {name}, of every replica")
    # horovodrun gives the ranks all of its environment.
    exported = [*launcher.env] if launch.by_horovodrun else launch.exported
    for name in dict.fromkeys(exported):
        if name in (contract.ENV_MPIRUN, *_AS_ROOT, *launch.env):
            continue
        if name in launcher.env:
            if worker.env.get(name) != launcher.env[name]:
                worker.env[name] = launcher.env[name]
                notes.tell(f"{where}[-x {name}]", None, f"now env {name}, of every replica")
        elif "envFrom" in launcher.container and launcher.container["envFrom"] != worker.container.get(
            "envFrom"
        ):
            _share_env_from(launcher, worker)
            notes.tell(f"{where}[-x {name}]", None, "now envFrom of the launcher, of every replica")
        else:
            notes.tell(f"{where}[-x {name}]", None, "left out: ranks have it from the worker's image")
    if launch.workdir is not None:
        launcher.container["workingDir"] = launch.workdir
        notes.tell(
            f"{where}[-wdir]", launch.workdir, "now workingDir of the launcher, which mpirun takes over"
        )


def _share_env_from(launcher: Role, worker: Role) -> None:
    own = worker.container.get("envFrom")
    worker.container["envFrom"] = [
        *launcher.container["envFrom"],
        *(entry for entry in own or [] if entry not in launcher.container["envFrom"]),
    ]


def _tell_of_the_rest(spec: MPIJobSpec, notes: Notes) -> None:
    if spec.mpi_implementation != "OpenMPI":
        notes.refuse(
            "spec.mpiImplementation",
            spec.mpi_implementation,
            "no equivalent: dtj starts ranks by Open MPI; build the image with it, and remove this field",
        )
    if spec.ssh_auth_mount_path:
        mounts = "left out: dtj mounts the job's key at /etc/dtj-ssh"
        notes.tell("spec.sshAuthMountPath", spec.ssh_auth_mount_path, mounts)
    for key, value in spec.rest.items():
        if key == "launcherCreationPolicy":
            if value == "AtStartup":
                notes.tell(f"spec.{key}", value, "left out: the launcher starts when every worker is ready")
        else:
            notes.tell(f"spec.{key}", value, "left out: no field of an MPIJob that dtj knows")
