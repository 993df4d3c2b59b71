"""`make docs`: write kubectl's output on the cluster of KUBECONFIG into docs/using.md and docs/status.md.

Copies the files that other pages show into them, too.
"""

from __future__ import annotations

import sys

from tests.cluster.docs_blocks import PAGES, filled, with_files
from tests.cluster.jobs import ROOT, Namespace, kubectl
from tests.cluster.trained import train


def main() -> int:
    """Make a namespace as a person would call it, and delete it afterwards."""
    for page in (ROOT / "docs").glob("*.md"):
        page.write_text(with_files(page.read_text()))
    namespace = Namespace("ml")
    if "ml" in kubectl("get", "namespaces", "--output=jsonpath={.items[*].metadata.name}").split():
        sys.exit("the cluster has a namespace ml already: delete it first")
    namespace.make()
    try:
        printed = train(namespace).printed
        for page in PAGES:
            page.write_text(filled(page.read_text(), printed))
    finally:
        namespace.delete()
    return 0


if __name__ == "__main__":
    sys.exit(main())
