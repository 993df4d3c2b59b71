"""Image archives in the format of `docker save`: their content, without unpacking."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

from tests.cluster.progress import ClusterError

if TYPE_CHECKING:
    from pathlib import Path


def images_in(archive: Path) -> dict[str, str]:
    """Tag -> what changes when the image behind the tag does: the name of its configuration."""
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile("manifest.json")
            manifest = json.load(member) if member is not None else []
    except (OSError, KeyError, tarfile.TarError, ValueError) as error:
        raise ClusterError(f"{archive} is no image archive: {error}") from error
    return {tag: image["Config"] for image in manifest for tag in image["RepoTags"] or []}
