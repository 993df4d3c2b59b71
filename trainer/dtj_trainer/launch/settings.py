"""The settings of `dtj-launch`, read from the environment and validated once."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from dtj_trainer import contract
from dtj_trainer.artifacts.checkpoints import DEFAULT_KEEP
from dtj_trainer.artifacts.peer_hosts import PeerHosts, peers_from_environment
from dtj_trainer.artifacts.s3 import BYTES_PER_SECOND, SYNC_TIMEOUT_SECONDS, read_options
from dtj_trainer.artifacts.segments import KEPT_ROTATED, MOST_ROTATED

DEFAULT_PEER_TIMEOUT_SECONDS = 300.0
DEFAULT_SETTLE_SECONDS = 5.0
DEFAULT_TRACKING_START_SECONDS, DEFAULT_TRACKING_END_SECONDS = 10.0, 20.0

RanksBy = Literal["mpi", "gloo"]


class SettingsError(ValueError):
    """A variable of the environment is invalid. The message names the variable."""


@dataclass(frozen=True)
class Settings:
    """The settings of one process of a job. Times in seconds."""

    job: str
    uid: str
    """The job's uid in Kubernetes, which no other job of the same name has."""
    pod: contract.PodInfo
    attempt: int
    host: str
    root: Path
    config_dir: Path
    termination_log: Path
    progress_port: int | None
    ssh_port: int
    artifacts_uri: str | None
    data_uri: str | None
    resume: str
    resume_since: int
    resume_skip: tuple[str, ...]
    world_size: int
    slots_per_worker: int
    gpus: int
    """The number of accelerators that this pod requested."""
    gpu_resource: str
    rank: int | None
    """The rank of the program's process; None where no variable sets a rank."""
    round: int
    """The number of restarts in place before the start of a rank."""
    start_barrier: tuple[str, int] | None
    """Host and port where the pods wait for each other before they start their ranks; None: they do not wait."""
    peer_timeout: float
    sync_timeout: float
    settle: float
    keep: int
    keep_every: float
    keep_bytes: int
    tracking_start: float
    tracking_end: float
    ssh_after_restore: bool
    """Whether a worker serves ssh only after it has restored its artifacts."""
    upload_bytes_per_second: float
    """The limit while the program runs; 0: no limit."""
    mpirun: str
    """The command that starts the ranks on other hosts: a name on the PATH, or a path."""
    mpi_args: tuple[str, ...]
    local_workers: str | None
    """The common prefix of all workers' workspaces, if ranks are started on this machine without ssh."""
    ranks_by: RanksBy | None
    peers: PeerHosts | None = None
    """The pods that restore with this one, if there are any."""
    history: contract.History | None = None
    """The operator's part of the job's history, which the pod writes; None: the pod writes no history."""
    code: tuple[str, str] | None = None
    """Path or `s3://` URI of the archive of `spec.code`, and its digest; None: the program is in the image."""
    packages: tuple[str, str] | None = None
    """Path or `s3://` URI of the archive of `spec.code.packages`, and its digest; None: the job has none."""
    packages_cache: Path | None = None
    """The folder where pods share installed packages; None: the pod installs its own."""
    checkpoints_dir: Path | None = None
    """The absolute path by which the program has its checkpoints; None: CHECKPOINTS in the workspace."""
    read_output: contract.ReadOutput = "true"
    """Whether steps and measures are read from the program's output."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The environment that these settings were read from, for the programs."""

    @property
    def own_root(self) -> bool:
        """Whether the program finds the workspace at ROOT only in a mount namespace of its own: see `own_root`."""
        return self.root != Path(contract.ROOT)

    @property
    def code_folder(self) -> Path | None:
        """The folder of the unpacked archive, by the path that the program uses: its working directory. None: the
        program has the working directory of the image.
        """
        return self._seen_root / contract.CODE if self.code else None

    @property
    def packages_folder(self) -> Path | None:
        """The folder of the installed packages, by the path that the program uses; None: the job has none."""
        return self._seen_root / contract.PACKAGES if self.packages else None

    @property
    def _seen_root(self) -> Path:
        own, here = Path(contract.ROOT), self.root
        # A program finds the workspace at ROOT if a mount namespace or a symbolic link puts it there. Otherwise the
        # program uses the workspace's own path.
        return own if own.exists() and own.samefile(here) else here

    @property
    def archives(self) -> tuple[tuple[str, Path], ...]:
        """The archives of `spec.code` in files, which the bucket lacks, with the names that they get there."""
        named = ((contract.CODE_FILE, self.code), (contract.PACKAGES_FILE, self.packages))
        return tuple(
            (key, Path(archive[0]))
            for key, archive in named
            if archive and not archive[0].startswith("s3://")
        )

    @property
    def kept_whole(self) -> tuple[Path, ...]:
        """The folders whose files are of use only when they are complete."""
        return self.checkpoints, self.root / contract.MODEL

    @property
    def checkpoints(self) -> Path:
        """The folder that has the checkpoints, by the path that this process uses."""
        workspace = self.root / contract.CHECKPOINTS
        return workspace if self.own_root else self.checkpoints_dir or workspace

    @property
    def logs(self) -> Path:
        """The folder of the logs."""
        return self.root / contract.LOGS

    @property
    def rotated_logs(self) -> int:
        """How many rotated files of a log its writer keeps: more where they may have to wait for their upload."""
        return MOST_ROTATED if self.artifacts_uri else KEPT_ROTATED

    @property
    def progress_file(self) -> Path:
        """The file that the program writes."""
        return self.root / contract.PROGRESS_FILE

    @property
    def control_socket(self) -> Path:
        """The socket by which rank wrappers reach their pod's supervisor."""
        return control_socket(self.root)


def control_socket(root: Path) -> Path:
    """Return the socket of the supervisor of the pod with this workspace."""
    return root / contract.RUN / "supervisor.sock"


def _read_pod(environment: Mapping[str, str]) -> contract.PodInfo:
    text = environment.get(contract.ENV_POD)
    if not text:
        raise SettingsError(
            f"{contract.ENV_POD} is not set: the operator and `dtj run` set it in each pod, unless their release is "
            "older than that of this dtj_trainer"
        )
    try:
        return contract.PodInfo.from_json(text)
    except ValueError as error:
        raise SettingsError(f"{contract.ENV_POD} can't be read: {error}") from error


def _read_history(environment: Mapping[str, str]) -> contract.History | None:
    text = environment.get(contract.ENV_HISTORY)
    if not text:
        return None
    try:
        return contract.History.from_json(text)
    except ValueError as error:
        raise SettingsError(f"{contract.ENV_HISTORY} can't be read: {error}") from error


def _read_checkpoints_dir(environment: Mapping[str, str]) -> Path | None:
    """Return the absolute path of a folder that has nothing but checkpoints: a restore removes all else from it."""
    text = environment.get(contract.ENV_CHECKPOINTS_DIR, "").strip()
    if not text:
        return None
    root = Path(contract.ROOT)
    has_code = environment.get(contract.ENV_CODE_ARCHIVE)
    working_directory = root / contract.CODE if has_code else Path.cwd()
    path = Path(os.path.realpath(working_directory / text))
    if path == root / contract.CHECKPOINTS:
        return None
    for other in (
        working_directory,
        Path(sys.prefix),
        root,
        Path(contract.CONFIG_DIR),
        Path(contract.SSH_DIR),
    ):
        if other.is_relative_to(path):
            raise SettingsError(
                f"{contract.ENV_CHECKPOINTS_DIR} must be a folder for checkpoints alone, and {path} contains {other}"
            )
    if any(path.is_relative_to(root / name) for name in (*contract.FOLDERS, contract.DATA_CACHE)):
        raise SettingsError(
            f"{contract.ENV_CHECKPOINTS_DIR} must not be {path}, because dtj itself uses this folder"
        )
    return path


def _read_archive(environment: Mapping[str, str], source: str, digest: str) -> tuple[str, str] | None:
    """Return an archive and its digest. source, digest: the names of their variables."""
    return (archive, environment.get(digest, "")) if (archive := environment.get(source)) else None


def _read_start_barrier(environment: Mapping[str, str]) -> tuple[str, int] | None:
    text = environment.get(contract.ENV_START_BARRIER, "")
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SettingsError(f"{contract.ENV_START_BARRIER} must be host:port, not {text!r}")
    return host.strip("[]"), int(port)


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the environment. Raises SettingsError for an invalid value, including those of S3_SETTINGS."""

    def integer(name: str, default: int, least: int = 0) -> int:
        text = environment.get(name, "").strip()
        if not text:
            return default
        if not text.isdecimal() or int(text) < least:
            raise SettingsError(f"{name} must be a whole number of at least {least}, not {text!r}")
        return int(text)

    def number(name: str, default: float, unit: str = "seconds") -> float:
        text = environment.get(name, "").strip()
        try:
            value = float(text) if text else default
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e9:
            raise SettingsError(f"{name} must be a number of {unit} from 0 to 1e9, not {text!r}")
        return value

    try:
        mpi_args = tuple(shlex.split(environment.get(contract.ENV_MPI_ARGS, "")))
    except ValueError as error:
        raise SettingsError(f"{contract.ENV_MPI_ARGS} can't be split into words: {error}") from error
    try:
        read_options(environment)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    ranks_by = environment.get(contract.ENV_RANKS_BY) or None
    if ranks_by not in (None, *get_args(RanksBy)):
        raise SettingsError(f"{contract.ENV_RANKS_BY} must be mpi or gloo, not {ranks_by!r}")
    read_output = environment.get(contract.ENV_READ_OUTPUT) or "true"
    if read_output not in get_args(contract.ReadOutput):
        raise SettingsError(f"{contract.ENV_READ_OUTPUT} must be true, false or trusted, not {read_output!r}")
    pod = _read_pod(environment)
    try:
        peers = peers_from_environment(environment)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    port = integer(contract.ENV_PROGRESS_PORT, 0)
    return Settings(
        job=environment.get(contract.ENV_JOB, ""),
        uid=environment.get(contract.ENV_UID, ""),
        pod=pod,
        attempt=integer(contract.ENV_ATTEMPT, 1),
        host=socket.gethostname(),
        root=Path(environment.get(contract.ENV_ROOT) or contract.ROOT),
        config_dir=Path(environment.get(contract.ENV_CONFIG_DIR) or contract.CONFIG_DIR),
        termination_log=Path(environment.get(contract.ENV_TERMINATION_LOG) or contract.TERMINATION_LOG),
        progress_port=port or None,
        ssh_port=integer(contract.ENV_SSH_PORT, contract.SSH_PORT, least=1),
        artifacts_uri=environment.get(contract.ENV_ARTIFACTS_URI) or None,
        data_uri=environment.get(contract.ENV_DATA_URI) or None,
        resume=environment.get(contract.ENV_RESUME) or "Auto",
        resume_since=integer(contract.ENV_RESUME_SINCE, 0),
        resume_skip=tuple(environment.get(contract.ENV_RESUME_SKIP, "").split()),
        world_size=integer(contract.ENV_WORLD_SIZE, 1, least=1),
        slots_per_worker=integer(contract.ENV_SLOTS_PER_WORKER, 1, least=1),
        gpus=integer(contract.ENV_GPUS, 0),
        gpu_resource=environment.get(contract.ENV_GPU_RESOURCE, ""),
        rank=contract.rank_of(environment),
        round=integer(contract.ENV_ROUND, 0),
        start_barrier=_read_start_barrier(environment),
        peer_timeout=number(contract.ENV_PEER_TIMEOUT_SECONDS, DEFAULT_PEER_TIMEOUT_SECONDS),
        sync_timeout=number(contract.ENV_SYNC_TIMEOUT_SECONDS, SYNC_TIMEOUT_SECONDS),
        settle=number(contract.ENV_CHECKPOINT_SETTLE_SECONDS, DEFAULT_SETTLE_SECONDS),
        keep=max(integer(contract.ENV_CHECKPOINTS_KEEP, DEFAULT_KEEP), 1),
        keep_every=60 * number(contract.ENV_CHECKPOINTS_KEEP_EVERY_MINUTES, 0.0, unit="minutes"),
        keep_bytes=integer(contract.ENV_CHECKPOINTS_KEEP_BYTES, 0),
        tracking_start=number(contract.ENV_TRACKING_START_SECONDS, DEFAULT_TRACKING_START_SECONDS),
        tracking_end=number(contract.ENV_TRACKING_END_SECONDS, DEFAULT_TRACKING_END_SECONDS),
        ssh_after_restore=bool(environment.get(contract.ENV_SSH_AFTER_RESTORE)),
        upload_bytes_per_second=1e6
        * number(contract.ENV_UPLOAD_MB_PER_SECOND, BYTES_PER_SECOND / 1e6, unit="megabytes a second"),
        mpirun=environment.get(contract.ENV_MPIRUN) or "mpirun",
        mpi_args=mpi_args,
        local_workers=environment.get(contract.ENV_LOCAL_WORKERS) or None,
        ranks_by=cast(RanksBy | None, ranks_by),
        peers=peers,
        history=_read_history(environment),
        code=_read_archive(environment, contract.ENV_CODE_ARCHIVE, contract.ENV_CODE_DIGEST),
        packages=_read_archive(environment, contract.ENV_PACKAGES_ARCHIVE, contract.ENV_PACKAGES_DIGEST),
        packages_cache=Path(cache) if (cache := environment.get(contract.ENV_PACKAGES_CACHE)) else None,
        checkpoints_dir=_read_checkpoints_dir(environment),
        read_output=cast(contract.ReadOutput, read_output),
        environment=dict(environment),
    )
