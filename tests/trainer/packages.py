"""`python -m tests.trainer.packages`: install the packages that these tests need.

Without sshd and Fashion-MNIST, tests skip. Without a browser, tests fail, and say what is missing.
"""

from __future__ import annotations

import shutil

from tests import browser, fashion_mnist
from tests.cluster.local.packages import install_missing
from tests.cluster.progress import ClusterError, note

if __name__ == "__main__" and shutil.which("apt-get"):
    install_missing({"/usr/sbin/sshd": "openssh-server"})
    try:
        browser.install()
    except ClusterError as error:  # Ubuntu has no such package: its Chromium is a snap.
        note(f"no browser was installed: {error}")
    fashion_mnist.folder()
