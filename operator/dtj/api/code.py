"""`spec.code` of a DistributedTrainingJob: the program as an archive, in place of a program in the image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from dtj.api.base import OBJECT_NAME, ApiModel
from dtj.api.shown import shown
from dtj_trainer import contract
from dtj_trainer.contract.code_archive import DIGEST

if TYPE_CHECKING:
    from dtj.api.job import Job

CODE_URI = rf"^s3://{contract.S3_BUCKET}/[^\s?#]+$"


class Packages(ApiModel):
    """Python packages: an archive of wheels that each pod installs to /dtj/packages, which follows the code in
    PYTHONPATH. `dtj submit` makes the archive of a requirements.txt.
    """

    config_map: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None
    """ConfigMap of the job's namespace with the archive, under the key packages.tar.gz, 512 KiB at most."""
    uri: Annotated[str, Field(pattern=CODE_URI, max_length=1024)] | None = None
    """s3://bucket/key of the archive, in the store of artifacts.endpoint: 256 MiB at most, 1 GiB installed."""
    digest: Annotated[str, Field(pattern=DIGEST, max_length=71)]
    """`sha256:` and the SHA-256 of the archive in hex digits. A pod refuses an archive with another one."""


class Code(ApiModel):
    """The program: an archive (tar.gz) that each pod unpacks to /dtj/code, which becomes the working directory and
    the first entry of PYTHONPATH. The image needs dtj_trainer.
    """

    config_map: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None
    """ConfigMap of the job's namespace with the archive in binaryData, under the key code.tar.gz: 512 KiB at most."""
    uri: Annotated[str, Field(pattern=CODE_URI, max_length=1024)] | None = None
    """s3://bucket/key of the archive, in the store of artifacts.endpoint: 256 MiB at most, 1 GiB unpacked."""
    digest: Annotated[str, Field(pattern=DIGEST, max_length=71)]
    """`sha256:` and the SHA-256 of the archive in hex digits. A pod refuses an archive with another one."""
    entrypoint: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """The script in the archive that runs as `python <entrypoint>` with args. With command: not used."""
    packages: Packages | None = None
    """Packages that the image does not have."""


def config_maps_of(job: Mapping[str, Any]) -> list[str]:
    """Return the ConfigMaps that the manifest of a job, which may have any form, names in `spec.code`: each once."""
    spec = job.get("spec")
    code = spec.get("code") if isinstance(spec, dict) else None
    parts = (code, code.get("packages")) if isinstance(code, dict) else ()
    names = (part.get("configMap") for part in parts if isinstance(part, dict))
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def code_faults(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the field and the message of each fault of a job's `spec.code`."""
    code = job.spec.code
    if code is None:
        return
    for path, archive in (("spec.code", code), ("spec.code.packages", code.packages)):
        if archive is not None and (archive.config_map is None) == (archive.uri is None):
            got = "both" if archive.uri else "neither"
            yield path, f"give one of configMap and uri, got {got}"
    if code.entrypoint is not None:
        parts = code.entrypoint.split("/")
        if code.entrypoint.startswith(("/", "-")) or ".." in parts or "\0" in code.entrypoint:
            yield (
                "spec.code.entrypoint",
                f"{shown(code.entrypoint)} is not the path of a script in the archive, e.g. train.py",
            )


def code_notes(job: Job) -> Iterator[str]:
    """Yield what a job without faults needs of its cluster for `spec.code`."""
    if job.spec.code is not None:
        yield f"spec.code: the image {job.spec.image} needs dtj_trainer, which dtj's own images have"
