"""The sources of runs for `dtj report`: jobs by name, prefixes in S3, files of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dtj.api.errors import DtjError, NotFound, Unusable
from dtj.api.yaml_lines import first_object
from dtj.cli.places import PastChoice, Place, find, store_of
from dtj.report.run import Metrics, Run, read_metrics
from dtj.report.utilisation import files_to_read, read_lines
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj.api.status import JobStatus

Read = Callable[[str], bytes]
"""A function that returns the content of a file of one run. Raises NotFound."""
Sizes = Callable[[str], Mapping[str, int]]
"""A function that returns the bytes of each file of one run below a folder."""


def read_runs(
    names: Sequence[str],
    *,
    local: bool,
    namespace: str | None,
    context: str | None,
    past: PastChoice | None = None,
    bare: bool = False,
) -> list[Run]:
    """Return the runs that the names stand for, each under a unique name. Raises DtjError.

    past: look for the names of jobs in the history of a bucket. bare: whether a job without metrics is a run, too.
    """
    runs: dict[str, Run] = {}
    for name in names:
        for run in _runs(name, local=local, namespace=namespace, context=context, past=past, bare=bare):
            unique, number = run.name, 1
            while unique in runs:
                number += 1
                unique = f"{run.name} ({number})"
            runs[unique] = replace(run, name=unique)
    return list(runs.values())


def run_of(place: Place, name: str, *, bare: bool = False, most: int | None = None) -> Run:
    """Return the run of a job under a name. Raises DtjError, such as NotFound for a job without metrics.

    most: the largest number of bytes of a file, other than those of utilisation, which are bounded together.
    bare: return a job without metrics, or whose bucket can't be read, as a run without rows.
    """
    from dtj.cli.bucket_place import BucketPlace

    job = place.job()
    manifest, status = job.to_manifest(), job.status
    try:
        with place.artifacts() as artifacts:

            def read(key: str) -> bytes:
                return artifacts.read(key, None if key.startswith(contract.UTILISATION) else most)

            run = _run(name, read, artifacts.sizes, job=manifest, status=status)
    except DtjError as error:
        if not bare:
            raise
        run = Run(name, [], job=manifest, status=status, labels=_labels(manifest), unread=error.message)
    if isinstance(place, BucketPlace) and place.past.end is None:
        return replace(run, state=place.note() or "")
    return run


def _runs(
    name: str,
    *,
    local: bool,
    namespace: str | None,
    context: str | None,
    past: PastChoice | None,
    bare: bool,
) -> Iterator[Run]:
    if name.startswith("s3://"):
        yield from _in_bucket(name, store_of(name, local=local))
    elif "/" in name or name in (".", "..") or Path(name).is_file() or _metrics_files(Path(name)):
        yield from _in_folder(Path(name))
    else:
        try:
            place = find(name, local=local, namespace=namespace, context=context, past=past)
        except DtjError as error:
            if not Path(name).is_dir():
                raise
            raise NotFound(
                f"the folder {name} has no {contract.METRICS_FILE}, and as the name of a job: {error.message}",
                error.remedy,
            ) from None
        yield run_of(place, name, bare=bare)


def _in_bucket(uri: str, environment: Mapping[str, str]) -> Iterator[Run]:
    """Yield the run at a prefix, or the runs of the jobs below the prefix."""
    from dtj.client import Artifacts

    try:
        artifacts = Artifacts(uri.rstrip("/"), environment)
        try:
            yield _run(PurePosixPath(uri).name, artifacts.read, artifacts.sizes)
        except NotFound:
            keys = [
                item.key for item in artifacts.ls() if PurePosixPath(item.key).name == contract.METRICS_FILE
            ]
            if not keys:
                raise NotFound(
                    f"{uri} has no {contract.METRICS_FILE}, nor has any job below it",
                    "a running job writes the file within seconds of its first step",
                ) from None
            for key in keys:
                folder = PurePosixPath(key).parent
                below = Artifacts(f"{uri.rstrip('/')}/{folder}", environment)
                yield _run(folder.name, below.read, below.sizes)
    except ValueError as error:
        raise Unusable(str(error)) from None


def _in_folder(path: Path) -> Iterator[Run]:
    """Yield the run of a metrics file, or the runs in a folder."""
    files = [path] if path.is_file() else _metrics_files(path)
    if not files:
        raise NotFound(f"{path} has no {contract.METRICS_FILE}")
    for file in files:
        folder = file.resolve().parent

        def read(key: str, folder: Path = folder, file: Path = file) -> bytes:
            try:
                return _read_whole(file if key == contract.METRICS_FILE else folder / key)
            except FileNotFoundError:
                raise NotFound(f"{folder / key} does not exist") from None
            except OSError as error:
                raise Unusable(f"{folder / key} can't be read: {error.strerror}") from None

        def sizes(key: str, folder: Path = folder) -> Mapping[str, int]:
            return {
                path.relative_to(folder).as_posix(): path.stat().st_size
                for path in (folder / key).glob("**/*.jsonl")
            }

        yield _run(folder.name, read, sizes)


def _read_whole(file: Path) -> bytes:
    """Return a file with its other segments, which exist if another program copied the folder from a bucket."""
    from dtj_trainer.artifacts.segments import segments_of

    parts = segments_of(file.name, (path.name for path in file.parent.iterdir()))
    return b"".join(file.with_name(part.key).read_bytes() for part in parts) if parts else file.read_bytes()


def _metrics_files(folder: Path) -> list[Path]:
    own = folder / contract.METRICS_FILE
    return [own] if own.is_file() else sorted(folder.glob(f"**/{contract.METRICS_FILE}"))


def _run(
    name: str,
    read: Read,
    sizes: Sizes,
    *,
    job: Mapping[str, Any] | None = None,
    status: JobStatus | None = None,
) -> Run:
    """Read a run. Raises NotFound if the run has neither metrics nor lines of utilisation."""
    stored = sizes(contract.UTILISATION)
    try:
        metrics = read_metrics(read(contract.METRICS_FILE))
    except NotFound as error:
        if not stored:
            raise NotFound(error.message, "docs/curves.md says which programs have rows") from None
        metrics = Metrics([], 0)  # A program that writes no metrics uses processors all the same.
    job = job or _job(read)
    status = status or _recorded(read)
    try:
        evaluator = read_metrics(read(contract.EVALUATOR_METRICS_FILE))
    except NotFound:
        evaluator = Metrics([], 0)
    left_out = metrics.left_out + evaluator.left_out
    files = files_to_read(stored)
    utilisation = [line for file in files for line in read_lines(read(file))]
    unread = len(stored) - len(files)
    return Run(name, metrics.rows, evaluator.rows, job, status, _labels(job), left_out, utilisation, unread)


def _labels(job: Mapping[str, Any] | None) -> Mapping[str, str]:
    return ((job or {}).get("metadata") or {}).get("labels") or {}


def _recorded(read: Read) -> JobStatus | None:
    """Return the recorded status of a job that has ended; None without one that can be read."""
    from dtj.client.past_job import Unreadable, read_end, recorded_uid
    from dtj_trainer.contract.history import END_FILE

    try:
        content = read(END_FILE)
        return read_end(content, recorded_uid(content)).status
    except (NotFound, Unreadable):
        return None


def _job(read: Read) -> Mapping[str, Any] | None:
    try:
        return first_object(read(contract.JOB_FILE).decode(errors="replace"), contract.JOB_FILE)
    except (NotFound, Unusable):
        return None
