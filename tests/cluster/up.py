"""`python -m tests.cluster.up --cluster local|kind`: bring a cluster up, and print its exports on stdout."""

from __future__ import annotations

import argparse
import sys

from tests.cluster import images, kind
from tests.cluster.exports import exports
from tests.cluster.local import cluster
from tests.cluster.local.paths import ADMIN_KUBECONFIG, RUN, locked
from tests.cluster.progress import ClusterError, note


def main() -> int:
    """Bring it up and load the images; 1 with the reason where it can't."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", choices=("local", "kind"), default="local")
    parser.add_argument("--is-up", action="store_true", help="only say, by the exit code, whether it is up")
    parser.add_argument("--no-images", action="store_true", help="neither build nor load images")
    images.add_option(parser)
    options = parser.parse_args()
    if options.is_up:
        there = kind.exists() if options.cluster == "kind" else cluster.healthy()
        return 0 if there else 1
    try:
        if options.cluster == "kind":
            kind.up()
            lines = exports(kind.KUBECONFIG, kind.store())
        else:
            with locked(RUN.name):
                cluster.up()
            lines = exports(ADMIN_KUBECONFIG, cluster.STORE)
        if not options.no_images:
            images.load(options.cluster, options.images)
    except ClusterError as error:
        note(f"error: {error}")
        return 1
    print(lines, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
