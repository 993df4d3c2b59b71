"""The real Fashion-MNIST, in its published format. `python -m tests.fashion_mnist` prints its folder."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.cluster.local import packages
from tests.cluster.local.paths import CACHE, built_once
from tests.cluster.progress import ClusterError
from tests.cluster.shell import run

NAME = "fashion-mnist"
PACKAGE = "dataset-fashion-mnist"
FILES = tuple(
    f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
_FOLDER = Path("usr/share/datasets") / NAME


def folder() -> Path:
    """Where the files are: Debian's package, installed for root, else unpacked in the cache."""
    installed = Path("/") / _FOLDER
    if installed.is_dir():
        return installed
    if shutil.which("apt-get") is None:
        raise ClusterError(
            f"Fashion-MNIST comes from Debian's package {PACKAGE}, and there is no apt here: put "
            f"{', '.join(FILES)} into {installed}"
        )
    if os.geteuid() == 0:
        packages.install_missing({str(installed): PACKAGE})
        return installed
    target = CACHE / "datasets" / NAME
    with built_once(target) as place:
        if place is not None:
            (deb,) = packages.download(place, PACKAGE)
            run("dpkg-deb", "--extract", deb, place)
            deb.unlink()
    return target / _FOLDER


if __name__ == "__main__":
    try:
        print(folder())
    except ClusterError as error:
        sys.exit(str(error))
