"""What a pod reports on `/progress`, and in its termination message."""

from __future__ import annotations

from typing import Literal, TypedDict


class Bottleneck(TypedDict):
    """What slows the training down, as measured by the program."""

    kind: Literal["ParameterServers", "Worker"]
    message: str
    """A sentence with the figures and the remedy. The job's condition `Bottleneck` shows it."""


EXPORT_ERROR_LENGTH = 300


Source = Literal["Program", "Report", "TensorBoard", "Output", "TrustedOutput"]
"""Where a figure comes from: rows that the program writes to metrics.jsonl, what it reports, its TensorBoard event
files, or its output."""


class Progress(TypedDict, total=False):
    """The progress of a program. Every field is optional; times are RFC 3339 in UTC."""

    step: int
    totalSteps: int
    epoch: int
    percent: float
    examplesPerSecond: float
    stepsPerSecond: float
    """Reported where the number of examples in a step is not known."""
    loss: float
    accuracy: float
    etaSeconds: float
    appliedTwice: int
    """Batches that asynchronous parameter servers applied again after a worker was lost, in all attempts."""
    bottleneck: Bottleneck
    """Absent: no bottleneck is known."""
    exporting: bool
    """The training is over, and its model is being exported."""
    exportError: str
    """Why the final model was not exported, in at most EXPORT_ERROR_LENGTH characters."""
    source: Source
    """Where the figures come from. Absent: the program reports them itself."""
    updatedTime: str


class CheckpointRef(TypedDict, total=False):
    """The newest snapshot with a manifest in the bucket. `step`: absent if unknown. `new`: some of its new files."""

    step: int
    time: str
    uri: str
    new: list[str]


class RestoredRef(TypedDict, total=False):
    """The snapshot that an attempt restored. `firstStep`: the first step that the program reported afterwards."""

    attempt: int
    uri: str
    firstStep: int


class Artifacts(TypedDict, total=False):
    """What is uploaded already, and what was restored."""

    uri: str
    checkpoint: CheckpointRef
    restored: RestoredRef
    heldUp: str
    """What has held up the next checkpoint for minutes; absent: nothing."""
    notUploaded: str
    """The files that the bucket refuses, or that can't be read, with the reasons; absent: none."""
    notRestored: str
    """The files of other pods for which the volume had no room at the restore; absent: none."""
    model: str
    tensorboard: str


Phases = dict[str, str]
"""RFC 3339 times of the phases of a pod: started, restored, peersReady, programStarted, firstStep, programEnded,
synced."""


class Utilisation(TypedDict, total=False):
    """What the pod uses lately."""

    cpuCores: float
    """Processors in use."""
    memoryBytes: float
    gpuUtilisation: float
    """The average of the pod's GPUs, 0 to 1."""


class PodCheckpoint(TypedDict, total=False):
    """The newest complete checkpoint that this pod can put back. `claim` and `number` order checkpoints."""

    claim: int
    number: int
    step: int
    time: str
    """When the folder had this content, RFC 3339 in UTC."""
    uploaded: bool
    """Whether the bucket has this checkpoint."""


class RoundRestarts(TypedDict, total=False):
    """The restarts in place since the pods were made."""

    count: int
    """The number of restarts. It only rises, so that a report that the operator reads twice counts once."""
    failure: Termination
    """The cause of the last restart, without log lines, progress, artifacts and phases."""


class Report(TypedDict, total=False):
    """The body of `/progress`."""

    progress: Progress
    artifacts: Artifacts
    checkpoint: PodCheckpoint
    """Absent before the first complete checkpoint, and in a Termination."""
    phases: Phases
    utilisation: Utilisation
    """Absent where no program runs, and in a Termination."""
    restarts: RoundRestarts
    """Absent before the first restart in place."""


# `class` is a keyword of Python, so that only the functional syntax can name this field.
Termination = TypedDict(
    "Termination",
    {
        "class": str,
        "message": str,
        "role": str,
        "index": int,
        "rank": int,
        "host": str,
        "exitCode": int,
        "signal": int,
        "lastLogLines": list[str],
        "progress": Progress,
        "artifacts": Artifacts,
        "phases": Phases,
        "recorded": bool,
        "restarts": RoundRestarts,
    },
    total=False,
)
"""The termination message: JSON of at most TERMINATION_MESSAGE_BYTES. `class` is absent after a success. `recorded`:
the pod has written END_FILE; absent otherwise."""
