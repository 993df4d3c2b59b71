"""The failures that a container can detect itself. Standard library only.

A class is `class` in the termination message and in FAILURE_FILE (`dtj_trainer.contract`), and
`status.failure.class` of the job. `dtj.api.reasons` has the classes that only the operator can detect.
docs/troubleshooting.md describes all of them for users; a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum


class FailureClass(StrEnum):
    """What went wrong in a container."""

    APPLICATION_ERROR = "ApplicationError"
    """The program ended with an exit code of its own, and nothing more is known."""
    OOM_KILLED = "OOMKilled"
    """The kernel killed a process because the container reached its memory limit."""
    DISK_FULL = "DiskFull"
    """The program ended because a disk was full."""
    SIGNAL = "Signal"
    """A signal ended the program."""
    COMMAND_NOT_FOUND = "CommandNotFound"
    """The image does not have the command."""
    MODULE_NOT_FOUND = "ModuleNotFound"
    """Python did not find a module."""
    CODE_UNUSABLE = "CodeUnusable"
    """An archive of `spec.code` can't be unpacked or installed, or is another one than the job asks for."""
    WORLD_SIZE_MISMATCH = "WorldSizeMismatch"
    """mpirun or the job's command started another number of ranks than the job asks for, or ranks with other
    numbers."""
    NO_ACCELERATOR = "NoAccelerator"
    """A container that asked for accelerators has none, or its program can't use them."""
    PEERS_UNREACHABLE = "PeersUnreachable"
    """Another pod did not answer in time after the start, or its name did not resolve."""
    PORT_IN_USE = "PortInUse"
    """Another process already listens on MASTER_PORT. No program is at fault: the next attempt uses another port."""
    DATA_NOT_FOUND = "DataNotFound"
    """The data set is not where the job says."""
    DATA_CORRUPT = "DataCorrupt"
    """The data set is damaged."""
    DATA_TOO_LARGE = "DataTooLarge"
    """The data set exceeds a limit of sets that are read whole into memory."""
    DATA_UNAVAILABLE = "DataUnavailable"
    """The store of the data set did not answer for a long time."""
    ARTIFACTS_UNAVAILABLE = "ArtifactsUnavailable"
    """The bucket did not accept or return an object, or no checkpoint in the bucket can be restored."""
    SUPERSEDED = "Superseded"
    """A later attempt already writes into the bucket. No program is at fault."""
    CONNECTION_LOST = "ConnectionLost"
    """Another pod went away while this pod needed it."""
