"""`python -m tests.trainer.packages`: install what these tests run on; without it they skip, and say so."""

from __future__ import annotations

import shutil

from tests import fashion_mnist
from tests.cluster.local.packages import install_missing

if __name__ == "__main__" and shutil.which("apt-get"):
    install_missing({"/usr/sbin/sshd": "openssh-server"})
    fashion_mnist.folder()
