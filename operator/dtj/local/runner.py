"""Run a job on this machine with the controller of the operator."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from dtj.api.errors import DtjError, Unusable
from dtj.api.git_annotations import git_annotations, git_state_of
from dtj.api.job import Job, Manifest, written
from dtj.api.status import JobStatus, Phase
from dtj.api.strategies import RULES
from dtj.local.cluster import LocalCluster
from dtj.local.machine import check_machine, free_ports, gpus, share_gpus, without_own_root
from dtj.local.output import follow_outputs
from dtj.local.plan import ENV_RUN, Place, container_ports, left_out, local_plan, missing_variables
from dtj.local.processes import Adopted, end_marked, marked
from dtj.local.runs import ANNOTATION_S3, Run, Runs
from dtj.local.store_choice import ChosenStore, S3Store, chosen_store
from dtj.plan.job import PlanCache, plan_without_gang
from dtj.plan.model import Plan
from dtj.reconcile.controller import Controller
from dtj.reconcile.metrics import OperatorMetrics
from dtj.reconcile.progress import ProgressPoller
from dtj.reconcile.queue import WorkQueue
from dtj.reconcile.reconciler import Reconciler
from dtj.status.times import written_time
from dtj_trainer import contract

# Detection of full disks: the disk of the run, and the disk of the embedded store.

LEAST_BYTES = 1 << 20
"""A disk with less free space is full."""
PATIENCE_SECONDS = 10.0
"""Seconds for which a disk may be full. A program may remove files, for example an incomplete checkpoint."""


class DiskWatch:
    """Watches the free space for the files in a folder."""

    def __init__(
        self, folder: Path, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """tell: called with a sentence for the user when the disk becomes full."""
        self.folder = folder
        self._tell = tell
        self._clock = clock
        self._full_since: float | None = None

    def full_seconds(self) -> float | None:
        """Return for how many seconds the disk has been full; None if the disk has space. Call this method often."""
        free = free_bytes(self.folder)
        if free >= LEAST_BYTES:
            self._full_since = None
            return None
        if self._full_since is None:
            self._full_since = self._clock()
            self._tell(
                f"the disk of {self.folder} is full, {free} bytes are free: the run ends unless there is space "
                f"within {PATIENCE_SECONDS:.0f} s"
            )
        return self._clock() - self._full_since


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user can still write to the disk of a folder."""
    disk = os.statvfs(folder)
    # Only root may use the space that file systems reserve.
    return disk.f_frsize * (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail)


# A process that outlives `dtj run` and ends all processes of the run, even if dtj was killed.
#
# The guard waits until dtj closes its end of a pipe. Meanwhile the guard keeps the lock files of the run and of the
# object store open, which the last uploads need.

STOP_SECONDS = 5.0
"""Seconds that programs get to save a checkpoint after dtj was killed."""


class Guard:
    """The guard process, as seen by `dtj run`."""

    def __init__(self, variable: str, value: str, run: Path, descriptors: Sequence[int]) -> None:
        """Start the guard.

        variable, value: the environment variable that marks the processes of the run. run: the folder of the run.
        descriptors: file descriptors that the guard keeps open.
        """
        reader, self._pipe = os.pipe()
        self._process = subprocess.Popen(  # noqa: S603 - this module
            [sys.executable, "-P", "-m", "dtj.local.runner", variable, value, str(run)],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=descriptors,
        )
        os.close(reader)

    def release(self) -> None:
        """Let the guard end the remaining processes of the run, and wait until the guard has ended."""
        os.close(self._pipe)
        self._process.wait()


def main() -> None:
    """Wait for the end of dtj, and then end the processes of the run and remove credentials."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 64):
        pass
    variable, value, run = sys.argv[1:]
    end_marked(variable, value, STOP_SECONDS)
    # These folders contain credentials.
    for folder in Path(run).glob(f"*/{contract.RUN}"):
        shutil.rmtree(folder, ignore_errors=True)


_PROGRESS_SECONDS = 1.0
_MORE_SPACE = (
    "free space on that disk, then `dtj run FILE --resume`; or set DTJ_HOME to a folder on another disk"
)
_LOOK_SECONDS = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Prefixes of variables that replicas don't inherit: they come from another job, or from an MPI that started dtj. A
# replica gets its own variables from the plan. Variables of the registered strategies are removed, too.
_REMOVED_PREFIXES = ("DTJ_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "HOROVOD_", "TF_CONFIG")


class Watcher(Protocol):
    """A receiver of the progress of a run. All calls come from the thread of the run."""

    def note(self, text: str) -> None:
        """Receive a sentence for the user."""

    def event(self, event: Manifest) -> None:
        """Receive an Event object of the operator."""

    def line(self, replica: str, text: str) -> None:
        """Receive a line that a replica printed. replica: `<role>-<index>`."""

    def status(self, status: JobStatus) -> None:
        """Receive the new status after each change."""


@dataclass(frozen=True)
class Outcome:
    """The end of a run."""

    run: Run
    status: JobStatus
    interrupted: bool


def run_job(
    job: Job,
    watcher: Watcher,
    *,
    home: Path,
    s3: S3Store = S3Store.EMBEDDED,
    data: Path | None = None,
    archive: Path | None = None,
    packages: Path | None = None,
    resume: bool = False,
) -> Outcome:
    """Run a valid job to its end. Return when no process of the run is left.

    home: the folder of dtj's files. data: a folder to upload to data.uri. archive, packages: the
    archives of `spec.code` and of its packages, in place of the ConfigMap; the run keeps copies. resume: continue
    the stored run of that name. Raises DtjError if the job can't run on this machine, before any process starts.
    """
    check_machine(job)
    if job.spec.run_policy.suspend:
        raise Unusable(
            "runPolicy.suspend is true: the job would never start", "set runPolicy.suspend to false"
        )
    if manager := job.spec.run_policy.other_manager:
        raise Unusable(
            f"runPolicy.managedBy is {manager}: another controller runs this job",
            "remove managedBy to run the job on this machine",
        )
    code = job.spec.code
    for given, of in ((archive, code), (packages, code and code.packages)):
        if given is None and of is not None and of.config_map is not None:
            raise Unusable(
                f"ConfigMap {of.config_map} of spec.code is an object of a cluster, and this machine has none",
                "`dtj run FOLDER` runs a folder; or remove spec.code, and run the job in the folder of the program",
            )
    run = Runs(home).run(job.name, job.namespace)
    with run.locked() as lock:
        stored = run.job if resume else None
        if stored is not None and stored.status.phase is Phase.SUCCEEDED:
            watcher.note(f"{job.name} has already succeeded")
            return Outcome(run, stored.status, interrupted=False)
        with chosen_store(job, s3, home, data, watcher.note) as store:
            job = _as_stored(job, stored, store)
            plans = PlanCache(plan_without_gang)
            place = _place(job, _plan(plans, job), run, store, home, watcher)
            # End the earlier run only after the store runs again: its processes can then upload their last
            # checkpoint.
            _end_earlier(run, place.mark, watcher)
            if stored is None:
                run.remove()
            run.folder.mkdir(parents=True, exist_ok=True)
            for given, file in ((archive, contract.CODE_FILE), (packages, contract.PACKAGES_FILE)):
                if given is not None:
                    shutil.copyfile(given, run.folder / file)
            if note := without_own_root(run.folder):
                watcher.note(note)
            guard = Guard(ENV_RUN, place.mark, run.folder, (*store.descriptors, lock))
            try:
                return asyncio.run(_Drive(run, job, plans, place, store, watcher, home).go())
            finally:
                guard.release()


def _as_stored(job: Job, stored: Job | None, store: ChosenStore) -> Job:
    """Return the job as an API server would store it. A run that continues keeps its stored status."""
    status = stored.status if stored else JobStatus()
    # The deadlines restart as after a suspension: the time without `dtj run` does not count.
    status = status.model_copy(update={"start_time": None})
    if stored is not None and stored.spec.strategy != job.spec.strategy:
        raise Unusable(
            f"{job.name} was run with strategy {stored.spec.strategy}, and --resume can't change the strategy",
            "run the job anew, without --resume",
        )
    if stored is not None and status.finished:
        status = _restarted(job, status.attempt + 1)
    return replace(
        job,
        uid=stored.uid if stored else str(uuid.uuid4()),
        generation=stored.generation + 1 if stored else 1,
        status=status,
        labels={},
        annotations={**git_annotations(git_state_of(job.annotations)), ANNOTATION_S3: store.kind.value},
        created=written_time(datetime.now(UTC)),
    )


def _manifest(job: Job) -> Manifest:
    """Return the manifest of a job as an API server would return it."""
    manifest = written(job)
    return {
        **manifest,
        "metadata": {
            **manifest["metadata"],
            "uid": job.uid,
            "generation": job.generation,
            "resourceVersion": "1",
            "creationTimestamp": job.created,
            "annotations": job.annotations,
        },
        "status": job.status.model_dump(by_alias=True, mode="json", exclude_none=True),
    }


def _restarted(job: Job, attempt: int) -> JobStatus:
    """Return the status of a failed job that runs again: only the number of the attempt stays."""
    plan = plan_without_gang(job)
    alone = plan.shape.restarts_with is not None
    replicas = {name.removeprefix(f"{job.name}-"): attempt for name in plan.shape.attempts}
    return JobStatus(attempt=attempt, replica_attempts=replicas if alone else None)


def _plan(plans: PlanCache, job: Job) -> Plan:
    """Return the plan of a job without the ssh Secret, whose name may be in the status: ranks start without ssh."""
    return plans(replace(job, status=job.status.model_copy(update={"ssh_secret": None})))


def _place(job: Job, plan: Plan, run: Run, store: ChosenStore, home: Path, watcher: Watcher) -> Place:
    secrets = {**os.environ, **store.environment}
    if missing := missing_variables(plan, secrets):
        raise Unusable(
            f"the job reads {', '.join(missing)} from its cluster (valueFrom), but the environment does not set it",
            f"export {missing[0]}=…",
        )
    for note in left_out(plan):
        watcher.note(note)
    return Place(
        run=run.folder,
        mark=str(run.folder.resolve()),
        gpus=share_gpus(job, plan, gpus()),
        environment={**store.environment, **_packages(job, home)},
        secrets=secrets,
    )


def _packages(job: Job, home: Path) -> dict[str, str]:
    """Return the variable of the folder of installed packages that all runs share, for a job with packages."""
    has_packages = job.spec.code is not None and job.spec.code.packages is not None
    return {contract.ENV_PACKAGES_CACHE: str(home / contract.PACKAGES)} if has_packages else {}


def _end_earlier(run: Run, mark: str, watcher: Watcher) -> None:
    """End the processes of an earlier run of this name. Some remain if its dtj and its guard were killed."""
    if not (found := marked(ENV_RUN, mark)):
        return
    pids = ", ".join(map(str, sorted(found)))
    watcher.note(
        f"processes of an earlier run of {run.name} still run: dtj ends them, after they have saved: {pids}"
    )
    if left := end_marked(ENV_RUN, mark, STOP_SECONDS):
        raise Unusable(
            f"processes of an earlier run of {run.name} can't be ended: {', '.join(map(str, left))}",
            "end them first, or give this run another name with --name",
        )


class _Drive:
    """One run, from its first pass to the end of its last process."""

    def __init__(
        self,
        run: Run,
        job: Job,
        plans: PlanCache,
        place: Place,
        store: ChosenStore,
        watcher: Watcher,
        home: Path,
    ) -> None:
        self._run, self._place, self._watcher = run, place, watcher
        self._plans = plans
        self._planned: tuple[Plan, Plan] | None = None
        """The last plan, and the same plan for this machine."""
        self._adopted = Adopted()
        self._cluster = LocalCluster(
            run, self._adopted, _manifest(job), _machine_environment(store), _now, watcher.event
        )
        stores = [home / "s3"] if store.descriptors else []
        self._disks = [DiskWatch(folder, watcher.note) for folder in (run.folder, *stores)]
        self._was_full = False
        self._interrupts = 0

    async def go(self) -> Outcome:
        cluster = self._cluster
        queue = WorkQueue(time.monotonic, random.Random())  # noqa: S311 - jitter
        progress = ProgressPoller(
            queue.add, _PROGRESS_SECONDS, lambda pod: self._place.ports[pod, contract.PROGRESS_PORT]
        )
        metrics = OperatorMetrics()
        reconciler = Reconciler(cluster, cluster, progress, metrics, _now, self._local_plan)
        controller = Controller(queue, reconciler, cluster, metrics)
        cluster.changed = queue.add
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._interrupted)
        kubelet = asyncio.create_task(cluster.look_after())
        outputs = asyncio.create_task(follow_outputs(self._run, self._watcher.line))
        controller.start(1)
        queue.add(cluster.key)
        try:
            await self._to_the_end()
        finally:
            await controller.stop()
            await progress.close()
            # After an interruption, processes of the run may still run. End all of them.
            await asyncio.to_thread(end_marked, ENV_RUN, self._place.mark, 0.0)
            for task in (kubelet, outputs):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            self._adopted.kill_all()
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
        status = cluster.status
        return Outcome(self._run, status, interrupted=bool(self._interrupts) and not status.finished)

    def _local_plan(self, job: Job) -> Plan:
        """Return the plan for this machine. An attempt may have other container ports than the attempt before."""
        plan, ports = _plan(self._plans, job), self._place.ports
        if self._planned is None or self._planned[0] is not plan:
            new = [port for port in container_ports(plan) if port not in ports]
            free = zip(new, free_ports(len(new), ports.values()), strict=True)
            self._place = replace(self._place, ports={**ports, **dict(free)})
            self._planned = plan, local_plan(plan, self._place)
        return self._planned[1]

    async def _to_the_end(self) -> None:
        reported: JobStatus | None = None
        while self._interrupts < 2:
            self._check_disks()
            status = self._cluster.status
            if status != reported:
                reported = status
                self._watcher.status(status)
            stopped = status.finished or (self._interrupts and status.phase is Phase.SUSPENDED)
            if stopped and not self._cluster.alive:
                if self._was_full:
                    self._watcher.note(f"the disk is full: {_MORE_SPACE}")
                return
            if status.finished:
                # End all pods, also with cleanPodPolicy None: no pod may outlive `dtj run`.
                self._cluster.stop_pods()
            await asyncio.sleep(_LOOK_SECONDS)

    def _check_disks(self) -> None:
        """Raise DtjError if the run can't be stored, or if the store has had no space for a while.

        Without space, the store takes no file, and replicas would try to upload for minutes.
        """
        full = {disk.folder: seconds for disk in self._disks if (seconds := disk.full_seconds()) is not None}
        for folder, seconds in full.items():
            if seconds >= PATIENCE_SECONDS:
                raise self._disk_error(f"the disk of {folder} is full", folder)
        if self._was_full and not full:
            self._cluster.store_again()
        self._was_full = bool(full)
        if (fault := self._cluster.fault) and not full:
            folder = self._run.folder
            raise self._disk_error(f"the run can't be stored in {folder}: {fault.strerror}", folder)

    def _disk_error(self, what: str, folder: Path) -> DtjError:
        """Return the error, with the failures that replicas have reported."""
        failures = "".join(f"; {failure}" for failure in self._cluster.failures)
        return DtjError(f"{what} ({free_bytes(folder)} bytes are free there){failures}", _MORE_SPACE)

    def _interrupted(self) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            self._cluster.suspend()
            alive = ", ".join(self._cluster.alive)
            self._watcher.note(
                f"stopping: waiting until {alive} have saved a checkpoint and ended; Ctrl-C again kills the processes"
                if alive
                else "stopping: no replica of the job runs"
            )
        else:
            self._watcher.note("killing every process of the job")


def _machine_environment(store: ChosenStore) -> Mapping[str, str]:
    """Return the variables of this machine that replicas get."""
    removed = (*_REMOVED_PREFIXES, *(["AWS_"] if store.environment else []))
    of_strategies = frozenset[str]().union(*(rules.variables for rules in RULES.values()))
    passed_on = {
        name: value
        for name, value in os.environ.items()
        if name not in of_strategies and not name.startswith(removed)
    }
    # tini can reap zombies as process 1 of a container. Outside a container, tini must be a subreaper.
    return {**passed_on, "TINI_SUBREAPER": "1"}


def _now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    main()
