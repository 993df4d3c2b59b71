"""`python -m tests.trainer.packages`: install the packages that these tests need. Without them, the tests skip."""

from __future__ import annotations

import shutil

from tests import fashion_mnist
from tests.cluster.local.packages import install_missing

if __name__ == "__main__" and shutil.which("apt-get"):
    install_missing({"/usr/sbin/sshd": "openssh-server"})
    fashion_mnist.folder()
