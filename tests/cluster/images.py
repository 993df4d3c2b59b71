"""`python -m tests.cluster.images load`: the project's images, built where they aren't, onto the nodes."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.cluster import kind
from tests.cluster.local import containerd
from tests.cluster.local.layout import NODES
from tests.cluster.progress import ClusterError, note, step

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / "docker" / "build.py"


def archives() -> list[Path]:
    """What `docker save` wrote, an archive an image; builds what is missing."""
    if not BUILDER.exists():
        note(f"no images: {BUILDER.relative_to(ROOT)} is not there")
        return []
    # Its own progress goes to our stderr.
    done = subprocess.run(
        [sys.executable, BUILDER, "--print-archives"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClusterError(
            f"the images can't be built (see above): {BUILDER.name} ended with {done.returncode}"
        )
    return [Path(line) for line in done.stdout.splitlines() if line.strip()]


def load(cluster: str) -> None:
    """Put each image on each node that hasn't got it."""
    for archive in archives():
        with step(f"loading {', '.join(tags(archive))}"):
            if cluster == "kind":
                kind.load(archive)
            else:
                for node in NODES:
                    containerd.import_image(node, archive)


def tags(archive: Path) -> list[str]:
    """The names that an archive's images carry."""
    return [tag for image in _manifest(archive) for tag in image["RepoTags"] or []]


def digest(archive: Path, tag: str) -> str:
    """What changes when the image behind a tag does: the name of its configuration."""
    return next(image["Config"] for image in _manifest(archive) if tag in (image["RepoTags"] or []))


def _manifest(archive: Path) -> list[dict]:
    with tarfile.open(archive) as tar:
        member = tar.extractfile("manifest.json")
        assert member is not None
        return list(json.load(member))


def main() -> int:
    """Load them, or say why not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("load",))
    parser.add_argument("--cluster", choices=("local", "kind"), default="local")
    try:
        load(parser.parse_args().cluster)
    except ClusterError as error:
        note(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
