"""What `dtj-launch` reads from the environment, checked once."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dtj_trainer import contract
from dtj_trainer.artifacts.checkpoints import DEFAULT_KEEP

DEFAULT_PEER_TIMEOUT_SECONDS = 300.0
DEFAULT_SYNC_TIMEOUT_SECONDS = 600.0
DEFAULT_SETTLE_SECONDS = 5.0

RANK_VARIABLE = "OMPI_COMM_WORLD_RANK"
WORLD_VARIABLE = "OMPI_COMM_WORLD_SIZE"


class SettingsError(ValueError):
    """A variable of the environment that can't be used; the message names it."""


@dataclass(frozen=True)
class Settings:
    """One process's place in its job. Times in seconds; `rank` is None outside MPI."""

    job: str
    role: str
    index: int
    attempt: int
    strategy: str
    host: str
    root: Path
    config_dir: Path
    termination_log: Path
    progress_port: int | None
    ssh_port: int
    artifacts_uri: str | None
    resume: str
    world_size: int
    rank: int | None
    peer_timeout: float
    sync_timeout: float
    settle: float
    keep: int
    mpi_args: tuple[str, ...]

    @property
    def logs(self) -> Path:
        """The folder of the logs."""
        return self.root / contract.LOGS

    @property
    def progress_file(self) -> Path:
        """What the program writes."""
        return self.root / contract.PROGRESS_FILE

    @property
    def control_socket(self) -> Path:
        """Where rank wrappers reach their pod's supervisor."""
        return self.root / contract.RUN / "supervisor.sock"


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the environment; raises SettingsError for a value that is no number where one is needed."""

    def integer(name: str, default: int, least: int = 0) -> int:
        text = environment.get(name, "").strip()
        if not text:
            return default
        if not text.isdecimal() or int(text) < least:
            raise SettingsError(f"{name} must be a whole number of at least {least}, not {text!r}")
        return int(text)

    def seconds(name: str, default: float) -> float:
        text = environment.get(name, "").strip()
        try:
            value = float(text) if text else default
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e9:
            raise SettingsError(f"{name} must be a number of seconds, not {text!r}")
        return value

    try:
        mpi_args = tuple(shlex.split(environment.get(contract.ENV_MPI_ARGS, "")))
    except ValueError as error:
        raise SettingsError(f"{contract.ENV_MPI_ARGS} can't be split into words: {error}") from error
    rank = integer(RANK_VARIABLE, -1)
    world = integer(WORLD_VARIABLE, 0) or integer(contract.ENV_WORLD_SIZE, 1, least=1)
    port = integer(contract.ENV_PROGRESS_PORT, 0)
    return Settings(
        job=environment.get(contract.ENV_JOB, ""),
        role=environment.get(contract.ENV_ROLE, ""),
        index=integer(contract.ENV_INDEX, 0),
        attempt=integer(contract.ENV_ATTEMPT, 1),
        strategy=environment.get(contract.ENV_STRATEGY, "Horovod") or "Horovod",
        host=socket.gethostname(),
        root=Path(environment.get(contract.ENV_ROOT) or contract.ROOT),
        config_dir=Path(environment.get(contract.ENV_CONFIG_DIR) or contract.CONFIG_DIR),
        termination_log=Path(environment.get(contract.ENV_TERMINATION_LOG) or contract.TERMINATION_LOG),
        progress_port=port or None,
        ssh_port=integer(contract.ENV_SSH_PORT, contract.SSH_PORT, least=1),
        artifacts_uri=environment.get(contract.ENV_ARTIFACTS_URI) or None,
        resume=environment.get(contract.ENV_RESUME) or "Auto",
        world_size=world,
        rank=rank if rank >= 0 else None,
        peer_timeout=seconds(contract.ENV_PEER_TIMEOUT_SECONDS, DEFAULT_PEER_TIMEOUT_SECONDS),
        sync_timeout=seconds(contract.ENV_SYNC_TIMEOUT_SECONDS, DEFAULT_SYNC_TIMEOUT_SECONDS),
        settle=seconds(contract.ENV_CHECKPOINT_SETTLE_SECONDS, DEFAULT_SETTLE_SECONDS),
        keep=max(integer(contract.ENV_CHECKPOINTS_KEEP, DEFAULT_KEEP), 1),
        mpi_args=mpi_args,
    )
