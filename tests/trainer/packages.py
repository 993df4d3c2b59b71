"""`python -m tests.trainer.packages`: install what these tests run on; without it they skip, and say so."""

from __future__ import annotations

import shutil

from tests.cluster.local.packages import install_missing

NEEDED = {
    "/usr/sbin/sshd": "openssh-server",
    "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz": "dataset-fashion-mnist",
}

if __name__ == "__main__" and shutil.which("apt-get"):
    install_missing(NEEDED)
