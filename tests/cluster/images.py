"""`python -m tests.cluster.images load`: build missing images of the project and load all images onto the nodes."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster import kind
from tests.cluster.archives import images_in
from tests.cluster.local import containerd
from tests.cluster.local.layout import NODES
from tests.cluster.progress import ClusterError, note, step

ROOT = Path(__file__).parents[2]
OF_TESTS = ("operator", "trainer-horovod", "trainer-tensorflow", "tensorboard", "serve")
"""The images that a cluster's tests use."""


def archives(only: Sequence[str] = (), tree: Path = ROOT) -> list[Path]:
    """What `docker save` wrote, an archive a Dockerfile, by default OF_TESTS; builds what is missing.

    tree: of the version whose images these are.
    """
    builder = tree / "docker" / "build.py"
    if not builder.exists():
        note(f"no images: {builder} is not there")
        return []
    # Its own progress goes to our stderr.
    done = subprocess.run(
        [sys.executable, builder, "--print-archives", *(f"--image={name}" for name in only or OF_TESTS)],
        cwd=tree,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClusterError(
            f"the images can't be built (see above): {builder.name} ended with {done.returncode}"
        )
    return [Path(line) for line in done.stdout.splitlines() if line.strip()]


def load(cluster: str, only: Sequence[str] = (), tree: Path = ROOT) -> list[Path]:
    """Put each image, or those named, on each node that hasn't got it; gives the archives."""
    built = archives(only, tree)
    for archive in built:
        title = f"loading {', '.join(images_in(archive))}"
        if cluster == "kind":
            with step(title):
                kind.load(archive)
        without = [node for node in NODES if cluster == "local" and not containerd.has(node, archive)]
        if without:
            with step(title), ThreadPoolExecutor() as pool:
                list(pool.map(containerd.import_image, without, [archive] * len(without)))
    return built


def add_option(parser: argparse.ArgumentParser) -> None:
    """`--image NAME`, for programs that load images."""
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="NAME",
        dest="images",
        help="only this one (may be repeated)",
    )


def main() -> int:
    """Load them, or say why not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("load",))
    parser.add_argument("--cluster", choices=("local", "kind"), default="local")
    add_option(parser)
    options = parser.parse_args()
    try:
        load(options.cluster, options.images)
    except ClusterError as error:
        note(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
