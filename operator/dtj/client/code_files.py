"""The files of a job's code, from its archive or from the bucket that has the archive."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dtj.api.errors import NotFound, Unusable
from dtj.client.artifacts import Artifacts
from dtj_trainer import contract
from dtj_trainer.contract.code_archive import CodeError, unpack

if TYPE_CHECKING:
    from dtj.api.spec import Code
    from dtj.client.resource import DistributedTrainingJob


def code_of(job: DistributedTrainingJob) -> Code:
    """Return `spec.code` of a job. Raises NotFound for a job whose program is in the image."""
    if job.spec.code is None:
        raise NotFound(
            f"{job.name} has no spec.code: its program is in the image {job.spec.image}",
            "`dtj submit FOLDER` makes jobs that bring their code",
        )
    return job.spec.code


def unpack_code(job: DistributedTrainingJob, source: bytes | Artifacts, folder: Path) -> list[Path]:
    """Copy the files of a job's code below `folder/code`, and return their paths. Present files are replaced.

    source: the archive, or the bucket with the archive. Raises Unusable if the archive has another digest than the
    job's.
    """
    code, target = code_of(job), folder / contract.CODE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".dtj-", dir=folder) as place:
            archive, files = Path(place, contract.CODE_FILE), Path(place, contract.CODE)
            if isinstance(source, bytes):
                archive.write_bytes(source)
            elif code.uri:
                store, _, key = code.uri.rpartition("/")
                Artifacts(store, source.environment).cp(key, archive)
            else:
                source.cp(contract.CODE_FILE, archive)
            unpack(archive, code.digest, files)
            names = sorted(path.relative_to(files) for path in files.rglob("*") if path.is_file())
            shutil.copytree(files, target, dirs_exist_ok=True)
    except CodeError as error:
        raise Unusable(f"the stored code archive of {job.name} can't be unpacked: {error}") from None
    except OSError as error:
        raise Unusable(f"{target} can't be written: {error}") from None
    return [target / name for name in names]
