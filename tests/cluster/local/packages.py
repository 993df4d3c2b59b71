"""Debian packages: programs to install, and sources and tools to unpack without installation."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.local.paths import locked
from tests.cluster.progress import step
from tests.cluster.shell import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# A file that the package brings -> the package. What is there already, from wherever, is used as it is.
NEEDED = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ethtool": "ethtool",
    "socat": "socat",
    "ipset": "ipset",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "dnsmasq": "dnsmasq-base",
    "gcc": "gcc",
    "/usr/include/stdio.h": "libc6-dev",
    "dpkg-source": "dpkg-dev",
}
WAIT_FOR_LOCK = ("-o", "DPkg::Lock::Timeout=600")
POLICY = Path("/usr/sbin/policy-rc.d")


def install_missing(needed: Mapping[str, str] = NEEDED) -> None:
    """Install what is needed, by default by the cluster, and is not there yet."""
    missing = sorted({package for file, package in needed.items() if not _is_there(file)})
    if not missing:
        return
    title = f"installing {len(missing)} Debian packages: {' '.join(missing)}"
    # apt waits for another's lock of dpkg, not for that of the package lists.
    with locked("packages"), step(title), _no_service_starts():
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run("apt-get", *WAIT_FOR_LOCK, "update", env=env)
        run("apt-get", *WAIT_FOR_LOCK, "install", "--yes", "--no-install-recommends", *missing, env=env)


def download(folder: Path, *packages: str) -> list[Path]:
    """Fetch packages as files, without installing them."""
    run("apt-get", "download", *packages, cwd=folder)
    return sorted(folder.glob("*.deb"))


def unpack_source(folder: Path, package: str) -> Path:
    """Unpack a source package in `folder`, patched; gives its tree.

    The machine's own apt sources seldom name sources. They are asked for the archives they use, and a
    private configuration in `folder` names the same archives' sources: nothing of the machine's changes.
    """
    archives = run(
        "apt-get", "indextargets", "Created-By: Packages", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    )
    sources = folder / "sources.list"
    sources.write_text("".join(f"deb-src {archive}\n" for archive in sorted(set(archives.splitlines()))))
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True)
    private = (
        "-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=/dev/null",
        "-o", f"Dir::State::Lists={lists}",
    )  # fmt: skip
    run("apt-get", *private, "update")
    run("apt-get", *private, "source", package, cwd=folder)
    return next(path for path in folder.glob(f"{package}-*") if path.is_dir())


def _is_there(file: str) -> bool:
    return Path(file).exists() if file.startswith("/") else shutil.which(file) is not None


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Debian's packages start what they install: no etcd or containerd but ours, please."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()
