"""`python -m tests.cluster.down --cluster local|kind`: remove the cluster. Fails if something is left."""

from __future__ import annotations

import argparse
import sys

from tests.cluster import kind
from tests.cluster.local import teardown
from tests.cluster.local.paths import RUN, locked
from tests.cluster.progress import ClusterError, note


def main() -> int:
    """Take it down, however far it came up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", choices=("local", "kind"), default="local")
    try:
        if parser.parse_args().cluster == "kind":
            kind.down()
        else:
            with locked(RUN.name):
                teardown.down()
    except ClusterError as error:
        note(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
