"""The runs that names stand for: folders, prefixes of a bucket, and names of jobs.

`dtj report` imports this module only when the command runs, not for `--help` or the completion of a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from dtj.api.errors import DtjError, NotFound, Unusable
from dtj.cli.places import PlaceOptions, store_of
from dtj.report.run import Run
from dtj.views.runs import read_run, run_of
from dtj_trainer import contract


def read_runs(names: Sequence[str], where: PlaceOptions, *, bare: bool = False) -> list[Run]:
    """Return the runs that the names stand for, each under a unique name. Raises DtjError.

    where: where jobs are looked for by name. bare: whether to return a job without metrics as a run, too.
    """
    runs: dict[str, Run] = {}
    for name in names:
        for run in _runs(name, where, bare=bare):
            unique, number = run.name, 1
            while unique in runs:
                number += 1
                unique = f"{run.name} ({number})"
            runs[unique] = replace(run, name=unique)
    return list(runs.values())


def _runs(name: str, where: PlaceOptions, *, bare: bool) -> Iterator[Run]:
    if name.startswith("s3://"):
        yield from _in_bucket(name, store_of(name, local=where.local))
    elif "/" in name or name in (".", "..") or Path(name).is_file() or _metrics_files(Path(name)):
        yield from _in_folder(Path(name))
    else:
        try:
            place = where.find(name)
        except DtjError as error:
            if not Path(name).is_dir():
                raise
            raise NotFound(
                f"the folder {name} has no {contract.METRICS_FILE}, and no job {name} was found: {error.message}",
                error.remedy,
            ) from None
        yield run_of(place, name, bare=bare)


def _in_bucket(uri: str, environment: Mapping[str, str]) -> Iterator[Run]:
    """Yield the run at a prefix, or the runs of the jobs below the prefix."""
    from dtj.client import Artifacts

    try:
        artifacts = Artifacts(uri.rstrip("/"), environment)
        try:
            yield read_run(PurePosixPath(uri).name, artifacts.read, artifacts.sizes)
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
                yield read_run(folder.name, below.read, below.sizes)
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

        yield read_run(folder.name, read, sizes)


def _read_whole(file: Path) -> bytes:
    """Return the content of a file and of its later segments. A folder copied from a bucket may have segments."""
    from dtj_trainer.artifacts.segments import segments_of

    parts = segments_of(file.name, (path.name for path in file.parent.iterdir()))
    return b"".join(file.with_name(part.key).read_bytes() for part in parts) if parts else file.read_bytes()


def _metrics_files(folder: Path) -> list[Path]:
    own = folder / contract.METRICS_FILE
    return [own] if own.is_file() else sorted(folder.glob(f"**/{contract.METRICS_FILE}"))
