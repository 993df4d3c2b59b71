"""Provides `debian:bookworm-slim`. Machines that can't pull the image build it by debootstrap from their mirror."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from engine import ANSWER_SECONDS, PULL_SECONDS
from host import CACHE, BuildError, need_packages, one_at_a_time, run, say

if TYPE_CHECKING:
    from engine import Engine

IMAGE = "debian:bookworm-slim"
SUITE = "bookworm"
# Files that Debian's own slim image leaves out, now and in later installs.
SLIM = """path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/groff/*
path-exclude /usr/share/info/*
path-exclude /usr/share/lintian/*
path-exclude /usr/share/locale/*
"""
APT = """APT::Update::Post-Invoke { "rm -f /var/cache/apt/*.bin || true"; };
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
Acquire::Languages "none";
"""


def ensure_base(engine: Engine, image: str) -> None:
    """Make the base image available in the engine: it exists, is pulled, or (only Debian's) is built here.

    Raises BuildError when no way succeeds.
    """
    if engine.has(image):
        return
    # Debian's image is small and can be built here: do not wait long for an unreachable registry.
    failure = engine.pull(image, seconds=ANSWER_SECONDS if image == IMAGE else PULL_SECONDS)
    if failure is None:
        return
    if image != IMAGE:
        raise BuildError(f"the base image {image} can't be pulled: {failure}")
    archive = _archive()
    say(f"{image} can't be pulled: importing the one made here")
    engine.run("import", "--change", 'CMD ["bash"]', archive, image)


def _archive() -> Path:
    """Return a tar of the root file system. A new one is built each month, with the month's updates."""
    archive = CACHE / "base" / f"{SUITE}-slim-{datetime.now(UTC):%Y-%m}.tar"
    if archive.exists():
        return archive
    need_packages({"debootstrap": "debootstrap"})
    if os.geteuid() != 0:
        raise BuildError(f"{IMAGE} can't be pulled, and making it by debootstrap needs root")
    with one_at_a_time("base"):
        if archive.exists():
            return archive
        archive.parent.mkdir(parents=True, exist_ok=True)
        sources = _debian_sources()
        say(f"making {IMAGE} by debootstrap, about 80 s")
        with tempfile.TemporaryDirectory(prefix="dtj-base-", dir=archive.parent) as temporary:
            root = Path(temporary) / "root"
            run(["debootstrap", "--variant=minbase", SUITE, root, sources[0].split()[1]])
            _slim(root)
            (root / "etc/apt/sources.list").write_text("\n".join(sources) + "\n")
            root_tar = Path(temporary) / "root.tar"
            run(["tar", "--numeric-owner", "--one-file-system", "-cf", root_tar, "-C", root, "."])
            root_tar.rename(archive)
        for old in archive.parent.glob(f"{SUITE}-slim-*.tar"):
            if old != archive:
                old.unlink()
    return archive


def _slim(root: Path) -> None:
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(SLIM)
    (root / "etc/apt/apt.conf.d/slim").write_text(APT)
    for pattern in ("usr/share/man/*", "usr/share/info/*", "usr/share/locale/*", "usr/share/lintian/*"):
        for path in root.glob(pattern):
            _remove(path)
    for path in [*root.glob("usr/share/doc/*/*")]:
        if path.name != "copyright":
            _remove(path)
    for pattern in (
        "var/cache/apt/archives/*.deb",
        "var/cache/apt/*.bin",
        "var/lib/apt/lists/*",
        "var/log/*.log",
    ):
        for path in root.glob(pattern):
            _remove(path)
    (root / "etc/hostname").unlink(missing_ok=True)
    (root / "etc/resolv.conf").unlink(missing_ok=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)  # A linked folder may list a file twice.


def _debian_sources() -> list[str]:
    """Return the machine's apt lines for the suite: main archive, updates, security.

    Raises BuildError on a machine without them, as on other distributions.
    """
    found: list[str] = []
    for file in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        text = file.read_text() if file.is_file() else ""
        if file.suffix == ".sources":
            for stanza in re.split(r"\n\s*\n", text):
                fields = dict(re.findall(r"^([A-Za-z-]+):\s*(.+)$", stanza, re.MULTILINE))
                for uri in fields.get("URIs", "").split():
                    found += [f"deb {uri} {suite} main" for suite in fields.get("Suites", "").split()]
        else:
            for uri, suite in re.findall(
                r"^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+.*main", text, re.MULTILINE
            ):
                found.append(f"deb {uri} {suite} main")
    suites = (SUITE, f"{SUITE}-updates", f"{SUITE}-security")
    ours = [line for suite in suites for line in found if line.split()[2] == suite]
    ours = list(dict.fromkeys(ours))
    if not ours or ours[0].split()[2] != SUITE:
        raise BuildError(f"{IMAGE} can't be pulled, and this machine's apt sources name no mirror of {SUITE}")
    return ours
