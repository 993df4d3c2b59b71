"""Conversion of an MPIJob to strategy Horovod, with the number of ranks that its mpirun starts in each worker.

If dtj's mpirun can start the same ranks, dtj's mpirun replaces the launcher's mpirun. Otherwise, the command of the
launcher runs as written, without the parts that do not work in dtj's launcher. `mpirun` parses the command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from dtj.api.horovod import HOROVOD, LAUNCHER, WORKER
from dtj.api.job import Manifest
from dtj.api.names import pod_name
from dtj.convert.kind import KindRules, OriginalJob
from dtj.convert.kubeflow_fields import KubeflowReplica, MPIJobSpec
from dtj.convert.mpirun import Launch, NoProgram, parse_launch
from dtj.convert.notes import Notes
from dtj.convert.replicas import ConvertedRole, common_spec, read_role, refuse_entrypoint, secure
from dtj.convert.run_policy import VersionDefaults, other_role_restarts, retries_of
from dtj_trainer import contract

HOSTFILES = ("/etc/mpi/hostfile", "$OMPI_MCA_orte_default_hostfile")
"""Values of --hostfile that mean mpi-operator's hostfile. dtj mounts its own hostfile at the same path."""


class Uneven(Exception):
    """The workers do not have the same number of ranks, or the number is not known before the launcher starts."""


class NeverStarts(Exception):
    """The command of the launcher can't start the ranks as written."""


def ranks_of_each_worker(launch: Launch, workers: Sequence[str], slots: int) -> int:
    """Return the number of ranks in each worker.

    workers: host names of the workers. slots: `slotsPerWorker`.
    Raises Uneven if the workers would not all have the same number of ranks, or if dtj's mpirun can't place the ranks
    in the same way. Raises NeverStarts if the command can't start the ranks as written.
    """
    if launch.hostfile not in (None, *HOSTFILES):
        raise NeverStarts(
            f"takes its hosts from {launch.hostfile}, which can't name dtj's pods; use /etc/mpi/hostfile"
        )
    count = len(workers)
    slots = _slots_by_hosts(launch, workers, slots)
    if launch.elastic:
        return _elastic(launch, count, slots)
    if launch.odd:
        raise Uneven(f"{launch.odd[0]} places ranks in a way that dtj's mpirun does not support")
    total_slots, per_node = count * slots, launch.per_node
    ranks = launch.ranks or count * (per_node or slots)
    if ranks > total_slots and not launch.oversubscribes:
        raise NeverStarts(
            f"starts {ranks} ranks where the workers have {total_slots} slots, which mpirun refuses without "
            "--oversubscribe; set slotsPerWorker, or the number of ranks"
        )
    if per_node is not None:
        if ranks > count * per_node:
            raise NeverStarts(
                f"starts {ranks} ranks, which do not fit into {count} workers with at most {per_node} ranks each"
            )
        if per_node > slots and not launch.oversubscribes:
            raise NeverStarts(
                f"starts {per_node} ranks in a worker that has {slots} slots, which mpirun refuses without "
                "--oversubscribe; set slotsPerWorker"
            )
        if ranks < count * per_node:
            raise Uneven(f"{ranks} ranks do not fill {count} workers with {per_node} ranks each")
        return per_node
    if ranks == total_slots or (ranks % count == 0 and (ranks > total_slots or launch.by_node)):
        return ranks // count
    raise Uneven(f"{ranks} ranks do not fill the {total_slots} slots of {count} workers")


def _slots_by_hosts(launch: Launch, workers: Sequence[str], slots: int) -> int:
    """Return the slots of each worker: from `-H` if the command has the option, else `slots`."""
    if launch.hosts is None:
        return slots
    numbers = {number or (slots if launch.by_horovodrun else 1) for number in launch.hosts.values()}
    if set(launch.hosts) != set(workers) or len(numbers) != 1:
        raise NeverStarts(
            f"names the hosts {', '.join(launch.hosts)}, and dtj runs the same number of ranks on every worker; "
            "remove the option, and set replicas and slotsPerWorker"
        )
    return numbers.pop()


def _elastic(launch: Launch, workers: int, slots: int) -> int:
    """Return the ranks of each worker. An elastic run uses every slot up to its maximum number of ranks."""
    slots = launch.per_node or slots
    highest = launch.elastic.get("max-np") or launch.elastic.get("max-num-proc") or ""
    if highest.isdecimal() and int(highest) < workers * slots:
        raise NeverStarts(
            f"runs at most {highest} ranks elastically, and dtj would start {workers * slots}, one in each slot; set "
            "replicas and slotsPerWorker"
        )
    return slots


_AT_COMMAND = r"(?:^|[\s;&|(`'\"])(?:[\w./-]*/)?"
# Patterns of commands that work in mpi-operator's launcher but not in dtj's launcher, each with a name and a remedy.
_MISSING = (
    (
        re.compile(_AT_COMMAND + r"horovodrun(?=\s|$)"),
        "horovodrun",
        "calls ssh without dtj's settings; write the command as a list of words that begins with "
        "horovodrun, or use mpirun",
    ),
    (
        re.compile(r"kubexec\.sh|" + _AT_COMMAND + r"kubectl(?=\s|$)"),
        "kubectl",
        "dtj starts ranks by ssh, and dtj's launcher may not call kubectl exec; remove kubexec.sh and kubectl",
    ),
    (
        re.compile(r"discover_hosts\.sh"),
        "discover_hosts.sh",
        "dtj's Horovod is not elastic, and dtj has no such script; take the hosts from /etc/mpi/hostfile",
    ),
    (
        re.compile(r"plm_(?:rsh|ssh)_(?:agent|args)"),
        "plm_rsh_agent, plm_rsh_args",
        "would replace dtj's settings of ssh, and ssh would reach no host; remove these parameters",
    ),
    (
        re.compile(_AT_COMMAND + r"(?:ssh|scp|sftp|rsync|pdsh)(?=\s)"),
        "ssh",
        "ssh needs dtj's settings: write ssh -F /etc/dtj/ssh_config",
    ),
    (
        re.compile(r"mpiexec\.hydra|\bI_MPI_\w+|\bHYDRA_\w+"),
        "MPICH or Intel MPI",
        "dtj starts ranks by Open MPI; build the image with Open MPI",
    ),
    (
        re.compile(r"(?:^|\s)-{1,2}(?:H|host)(?:\s|=)"),
        "-H",
        "names hosts; remove the option: mpirun then takes all workers from the hostfile",
    ),
    (
        re.compile(
            r"(?:^|\s)-{1,2}(?:hostfile|machinefile)[\s=]+(?!\"?(?:/etc/mpi/hostfile|\$\{?OMPI_MCA_orte_default_hostfile))"
        ),
        "--hostfile",
        "the hostfile of dtj is /etc/mpi/hostfile; name that file, or remove the option",
    ),
)
_SSH_BY_DTJ = re.compile(_AT_COMMAND + r"ssh\s+-F\s*/etc/dtj/ssh_config")


def obstacles(words: Sequence[str], key_folder: str | None) -> Iterator[tuple[str, str]]:
    """Yield the parts of a launcher's command that can't work in dtj, each with a remedy.

    key_folder: `sshAuthMountPath`, where mpi-operator mounts the ssh key; None if the job does not set the field.
    """
    text = _SSH_BY_DTJ.sub(" ", " ".join(words))
    for pattern, name, remedy in _MISSING:
        if pattern.search(text):
            yield name, remedy
    if key_folder and key_folder.rstrip("/") + "/" in text:
        yield key_folder, "the key of dtj's pods is in /etc/dtj-ssh; remove the path"


_PATH = "spec.mpiReplicaSpecs"
_BY_SSH = ("v2beta1",)
"""The versions in which mpi-operator starts ranks by ssh. In the others, mpi-operator uses kubectl exec."""
_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
_LONGEST_LINE = 120
"""Maximum number of characters of options in one note. Longer lists of options get one note for each option."""


def horovod_spec(
    source: OriginalJob, spec: MPIJobSpec, policy: Manifest, notes: Notes
) -> tuple[Manifest, Manifest]:
    """Return spec and run policy of the job. If the job can't be converted, the notes have the reasons."""
    replicas = {key.lower(): (key, replica) for key, replica in spec.mpi_replica_specs.items()}
    by_ssh = source.version in _BY_SSH
    _note_other_fields(spec, notes)
    if set(replicas) != {LAUNCHER, WORKER} or not replicas[WORKER][1].replicas:
        notes.refuse(
            _PATH,
            ", ".join(spec.mpi_replica_specs) or None,
            "must have the roles Launcher and Worker, and no other role",
        )
        return {}, policy
    launcher = _role(LAUNCHER, *replicas[LAUNCHER], spec, notes, source.command)
    # Pass no command for the worker: dtj runs sshd instead of the worker's command.
    worker = _role(WORKER, *replicas[WORKER], spec, notes)
    policy = retries_of(replicas[LAUNCHER][1].restart_policy, launcher.path, policy, source.defaults, notes)
    other_role_restarts(replicas[WORKER][1].restart_policy, worker.path, notes)
    _settle_launcher(spec, launcher, worker, notes)
    _let_workers_serve_ssh(worker, by_ssh, notes)
    where = f"{launcher.path}.template.spec.containers.command"
    slots, as_root = _start_ranks(source.name, by_ssh, spec, launcher, worker, where, notes)
    secure([worker, launcher], as_root, notes)
    dtj_spec = {"strategy": HOROVOD.name, **common_spec([worker, launcher])}
    # Keep an empty launcher of a queued job: every role in replicaSpecs gets the labels of the queue.
    dtj_spec["replicaSpecs"] = {
        role: own for role, own in dtj_spec["replicaSpecs"].items() if own or role == WORKER or source.queued
    }
    if slots != (dtj_spec["replicaSpecs"][WORKER].get("gpus") or 1):
        dtj_spec["horovod"] = {"slotsPerWorker": slots}
    if source.queued and "command" not in dtj_spec and not notes.refused:
        notes.add(
            where,
            None,
            "starts together with the workers, because Kueue admits all pods at once: let the command wait until "
            "each host in /etc/mpi/hostfile answers ssh -F /etc/dtj/ssh_config",
        )
    return dtj_spec, policy


def _role(
    name: str, key: str, replica: KubeflowReplica, spec: MPIJobSpec, notes: Notes, command: Sequence[str] = ()
) -> ConvertedRole:
    return read_role(name, f"{_PATH}.{key}", replica, spec.main_container, notes, command)


def _settle_launcher(spec: MPIJobSpec, launcher: ConvertedRole, worker: ConvertedRole, notes: Notes) -> None:
    if launcher.replicas != 1:
        notes.add(f"{launcher.path}.replicas", launcher.replicas, "now 1: a job has one launcher")
        launcher.replicas = 1
    if spec.run_launcher_as_worker:
        worker.replicas += 1
        notes.add(
            "spec.runLauncherAsWorker",
            True,
            f"now {worker.replicas} workers, one more than before: dtj's launcher runs no rank",
        )
    if launcher.accelerators:
        notes.add(
            f"{launcher.path}.template.spec.containers",
            launcher.accelerators,
            "left out: dtj's launcher runs no rank",
        )
        launcher.accelerators = {}


def _let_workers_serve_ssh(worker: ConvertedRole, by_ssh: bool, notes: Notes) -> None:
    """Replace the worker's program by dtj's sshd, and the worker's readiness probe by dtj's."""
    where = f"{worker.path}.template.spec.containers"
    words = [word for part in worker.program for word in part]
    if words:
        notes.add(
            f"{where}.command",
            shlex.join(words),
            "left out: dtj starts sshd itself; move other preparations of the command into the image or an "
            "initContainer",
        )
    worker.program = ([], [])
    probe = worker.container.pop("readinessProbe", None)
    if probe is not None:
        notes.add(f"{where}.readinessProbe", probe, "left out: dtj probes the port of its own sshd")
    if not by_ssh:
        notes.add(
            f"{where}.image",
            worker.image,
            "must have sshd (openssh-server): dtj starts ranks by ssh, and this version of MPIJob by kubectl exec",
        )


def _start_ranks(
    job: str,
    by_ssh: bool,
    spec: MPIJobSpec,
    launcher: ConvertedRole,
    worker: ConvertedRole,
    where: str,
    notes: Notes,
) -> tuple[int, bool]:
    """Set the program of the launcher. Return the slots of each worker, and whether mpirun runs as root."""
    words = [*launcher.program[0], *launcher.program[1]]
    if not words:
        refuse_entrypoint(launcher, where, notes)
        return spec.slots_per_worker, False
    if not launcher.program[0]:
        notes.add(where, None, "not given: args are now the command, and the image's entrypoint does not run")
    values = {name: variable.get("value") for name, variable in launcher.env.items()}
    hosts = [f"{pod_name(job, 'worker', index)}.{job}" for index in range(worker.replicas)]
    try:
        launch = parse_launch(words, values)
        if launch.hydra:
            notes.refuse(
                where,
                shlex.join(launch.hydra),
                "belongs to MPICH or Intel MPI, and dtj starts ranks by Open MPI: build the image with Open MPI",
            )
            return spec.slots_per_worker, False
        slots = ranks_of_each_worker(launch, hosts, spec.slots_per_worker)
    except NeverStarts as error:
        notes.refuse(where, shlex.join(words), str(error))
        return spec.slots_per_worker, False
    except (NoProgram, Uneven) as error:
        return _run_as_written(by_ssh, spec, launcher, worker, where, str(error), notes)
    launcher.program = (launch.program, [])
    _note_options(launch, where, worker.replicas, slots, spec.slots_per_worker, notes)
    _give_ranks(launch, launcher, worker, where, notes)
    return slots, launch.as_root


def _run_as_written(
    by_ssh: bool,
    spec: MPIJobSpec,
    launcher: ConvertedRole,
    worker: ConvertedRole,
    where: str,
    why: str,
    notes: Notes,
) -> tuple[int, bool]:
    """Keep the launcher's command. dtj provides hostfile and ssh as mpi-operator does."""
    command, args = launcher.program
    launcher.program, launcher.keeps_command = ((command, args) if command else (args, [])), True
    words = [*command, *args]
    for name, remedy in obstacles(words, spec.ssh_auth_mount_path):
        notes.refuse(where, name, remedy)
    ranks = worker.replicas * spec.slots_per_worker
    notes.add(
        where,
        None,
        f"{why}: the command runs as written, as the launcher's own, with the hosts of all {ranks} slots in "
        "/etc/mpi/hostfile and Open MPI's settings for ssh in the environment. dtj does not check how many ranks the "
        "command starts, and uploads no logs of launcher and ranks",
    )
    if not by_ssh:
        notes.add(
            where,
            None,
            "ranks have the environment of an ssh session: the image's PATH and LD_LIBRARY_PATH and the workers' env "
            "reach the ranks only where mpirun exports them by -x",
        )
    return spec.slots_per_worker, any("allow-run-as-root" in word for word in words)


def _note_options(
    launch: Launch, where: str, workers: int, slots: int, given_slots: int, notes: Notes
) -> None:
    started = "horovodrun" if launch.by_horovodrun else "mpirun"
    needs = "; the image must have Open MPI, and Horovod built with it" if launch.by_horovodrun else ""
    counting = [word for words in launch.counting for word in words]
    notes.add(
        where,
        shlex.join([launch.starter[0], *counting]),
        f"now dtj's {'mpirun instead of horovodrun' if launch.by_horovodrun else 'own call of mpirun'}, which starts "
        f"{workers * slots} ranks, {slots} in each of {workers} workers{needs}",
    )
    if slots != given_slots:
        notes.add(
            "spec.slotsPerWorker", given_slots, f"now {slots}: {started} starts {slots} ranks in each worker"
        )
    if slots > given_slots:
        # The original job has more ranks than slots, for which mpirun sets this variable. dtj raises the slots, so
        # that its mpirun would not set the variable.
        launch.env.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    dropped = [shlex.join(words) for words in launch.dropped]
    lines = [" ".join(dropped)] if len(" ".join(dropped)) <= _LONGEST_LINE else dropped
    for line in filter(None, lines):
        notes.add(where, line, "left out: dtj sets the options of its mpirun")
    if launch.elastic:
        elastic = " ".join(f"--{name} {value}" for name, value in launch.elastic.items())
        notes.add(
            f"{where}[elastic]",
            elastic,
            f"left out: dtj's Horovod is not elastic; {workers * slots} ranks run, and all start again when one is "
            "lost",
        )


def _give_ranks(
    launch: Launch, launcher: ConvertedRole, worker: ConvertedRole, where: str, notes: Notes
) -> None:
    """Set the environment and the working directory that mpirun's options give the ranks."""
    if launch.path is not None:
        launcher.env[contract.ENV_MPIRUN] = {"name": contract.ENV_MPIRUN, "value": launch.path}
        notes.add(
            where,
            launch.path,
            f"set as env {contract.ENV_MPIRUN} of the launcher, which starts the same mpirun",
        )
    if launch.as_root:
        for name in _AS_ROOT:
            launcher.env[name] = {"name": name, "value": "1"}
        notes.add(
            f"{where}[--allow-run-as-root]", None, f"replaced by env {' and '.join(_AS_ROOT)} of the launcher"
        )
    for name, value in launch.env.items():
        for role in (launcher, worker):
            role.env[name] = {"name": name, "value": value}
        notes.add(f"{where}[{name}]", value, f"set as env {name} of every replica")
    # horovodrun passes its whole environment to the ranks.
    exported = [*launcher.env] if launch.by_horovodrun else launch.exported
    for name in dict.fromkeys(exported):
        if name in (contract.ENV_MPIRUN, *_AS_ROOT, *launch.env):
            continue
        if name in launcher.env:
            if worker.env.get(name) != launcher.env[name]:
                worker.env[name] = launcher.env[name]
                notes.add(f"{where}[-x {name}]", None, f"set as env {name} of every replica")
        elif "envFrom" in launcher.container and launcher.container["envFrom"] != worker.container.get(
            "envFrom"
        ):
            _share_env_from(launcher, worker)
            notes.add(
                f"{where}[-x {name}]",
                None,
                "set by envFrom of every replica, which is copied from the launcher",
            )
        else:
            notes.add(
                f"{where}[-x {name}]", None, "left out: the ranks get the variable from the worker's image"
            )
    if launch.workdir is not None:
        launcher.container["workingDir"] = launch.workdir
        notes.add(
            f"{where}[-wdir]",
            launch.workdir,
            "set as workingDir of the launcher: mpirun starts the ranks in the same folder",
        )


def _share_env_from(launcher: ConvertedRole, worker: ConvertedRole) -> None:
    own = worker.container.get("envFrom")
    worker.container["envFrom"] = [
        *launcher.container["envFrom"],
        *(entry for entry in own or [] if entry not in launcher.container["envFrom"]),
    ]


def _note_other_fields(spec: MPIJobSpec, notes: Notes) -> None:
    if spec.mpi_implementation != "OpenMPI":
        notes.refuse(
            "spec.mpiImplementation",
            spec.mpi_implementation,
            "no equivalent: dtj starts ranks by Open MPI; build the image with Open MPI, and remove this field",
        )
    if spec.ssh_auth_mount_path:
        mounts = "left out: dtj mounts the job's key at /etc/dtj-ssh"
        notes.add("spec.sshAuthMountPath", spec.ssh_auth_mount_path, mounts)
    for key, value in spec.rest.items():
        if key == "launcherCreationPolicy":
            if value == "AtStartup":
                notes.add(f"spec.{key}", value, "left out: the launcher starts when every worker is ready")
        else:
            notes.add(f"spec.{key}", value, "left out: dtj does not support this field of an MPIJob")


MPI_JOB = KindRules(
    strategy=HOROVOD,
    field="mpiReplicaSpecs",
    form=MPIJobSpec,
    convert=horovod_spec,
    # Defaults from https://github.com/kubeflow/mpi-operator v0.2.3, v0.3.0 and v0.8.0, pkg/apis.
    versions={
        "v1alpha2": VersionDefaults("None", 6),
        "v1": VersionDefaults("None"),
        "v2beta1": VersionDefaults("None", 6),
    },
    newest="v2beta1",
)
