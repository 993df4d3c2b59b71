"""Installs the packages of a job (`spec.code.packages`): once a pod, or once a node where pods share a cache.

A set of packages is a folder named by the digest of its archive, beside a file that is locked: exclusively while the
set is installed, shared while a pod uses the set. The complete set is renamed into place, so that a killed
installation leaves no half set. The link PACKAGES of the workspace names the set of the pod.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import time
import zipfile
from contextlib import suppress
from pathlib import Path

from dtj_trainer import contract
from dtj_trainer.contract.code_archive import DIGEST, MOST_ENTRIES, UNPACKED_BYTES, CodeError, unpack
from dtj_trainer.contract.package_set import FILE, PackageSet
from dtj_trainer.launch.code import local_archive, unavailable
from dtj_trainer.launch.settings import Settings
from dtj_trainer.parent_death import die_with_parent

log = logging.getLogger(__name__)

KEPT_SETS = 8
"""A shared folder keeps so many sets, and the sets that pods use. The sets that were used least recently go first."""
_LOOK_SECONDS = 0.1


def bring_packages(settings: Settings) -> None:
    """Install the packages of the job, if the job has any. Raises CodeUnavailable."""
    if settings.packages is None:
        return
    source, digest = settings.packages
    with unavailable(source, "the packages could not be installed"):
        if not re.fullmatch(DIGEST, digest):
            raise CodeError(f"{contract.ENV_PACKAGES_DIGEST} is no digest: {digest!r}")
        place = _shared_set(settings) or _installed_set(settings, settings.root / f".{contract.PACKAGES}")
        _check_image(PackageSet.from_json((place / FILE).read_bytes()))
        settings.root.mkdir(parents=True, exist_ok=True)
        new = settings.root / f".{contract.PACKAGES}-link"
        new.unlink(missing_ok=True)
        new.symlink_to(place.absolute())
        new.rename(settings.root / contract.PACKAGES)


def _shared_set(settings: Settings) -> Path | None:
    """Return the set in the folder that pods share; None without such a folder, or where it can't be used."""
    if (folder := settings.packages_cache) is None:
        return None
    try:
        place = _installed_set(settings, folder)
    except OSError as error:
        log.warning(
            "this pod installs the packages for itself, because %s can't be shared: %s", folder, error
        )
        return None
    with suppress(OSError):  # Another pod may remove the same sets.
        _remove_unused(folder)
    return place


def _installed_set(settings: Settings, folder: Path) -> Path:
    """Return the set of the job in a folder; install it, if it is not there. Raises OSError, CodeError, S3Error."""
    assert settings.packages is not None
    source, digest = settings.packages
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / digest.removeprefix("sha256:")
    lock = _lock(place, settings.sync_timeout)
    if place.is_dir():
        return place
    new = place.with_suffix(".new")
    try:
        shutil.rmtree(new, ignore_errors=True)  # of a killed installation
        new.mkdir()
        with local_archive(source, settings, contract.PACKAGES_FILE) as archive:
            unpack(archive, digest, new / "wheels")
        _install(new, lock)
        (new / "set").rename(place)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return place


def _lock(place: Path, seconds: float) -> int:
    """Lock a set until this process ends: shared if the set is there, else exclusively.

    Raises TimeoutError if another process does not finish its installation; PermissionError for a set of another
    user, who could change it.
    """
    deadline = time.monotonic() + seconds
    path = place.with_suffix(".lock")
    while True:
        there = _is_own(place)
        # A process that dtj-launch becomes keeps the lock: the descriptor stays open at exec.
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.set_inheritable(lock, True)
        with suppress(BlockingIOError):
            fcntl.flock(lock, (fcntl.LOCK_SH if there else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            # Another process may have installed or removed the set meanwhile, and removed the file.
            if there == _is_own(place) and path.exists() and path.samefile(f"/proc/self/fd/{lock}"):
                os.utime(lock)
                return lock
        os.close(lock)
        if time.monotonic() > deadline:
            raise TimeoutError(f"another process has held {path} for {seconds:.0f} s")
        time.sleep(_LOOK_SECONDS)


def _is_own(place: Path) -> bool:
    try:
        status = place.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{place} is not a folder of this user")
    return True


def _remove_unused(folder: Path) -> None:
    """Remove the sets above KEPT_SETS that no pod uses."""
    with os.scandir(folder) as entries:
        locks = [(each.stat().st_mtime, Path(each)) for each in entries if each.name.endswith(".lock")]
    for _, path in sorted(locks, reverse=True)[KEPT_SETS:]:
        with suppress(OSError), path.open("rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # First under a name that nobody takes for a set. A killed installation may have left a folder there.
            unused = path.with_suffix(".new")
            shutil.rmtree(unused, ignore_errors=True)
            with suppress(FileNotFoundError):
                path.with_suffix("").rename(unused)
            shutil.rmtree(unused, ignore_errors=True)
            path.unlink()


def _install(new: Path, lock: int) -> None:
    """Install the wheels of `new` to the folder `set` in it, whose content is then on the disk."""
    found = _read_set(new / "wheels")
    wheels = sorted((new / "wheels").glob("*.whl"))
    target, temporary = new / "set", new / "temporary"
    for folder in (target, temporary):
        folder.mkdir()
    if wheels:
        # pip moves the files from TMPDIR to the target. It reads no settings and no index of the image.
        done = subprocess.run(  # noqa: S603 - pip
            [*_installer(), "--no-index", "--no-deps", "--target", str(target), *map(str, wheels)],
            env={"PATH": os.environ.get("PATH", ""), "PIP_CONFIG_FILE": os.devnull, "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent(),
            pass_fds=(lock,),
            check=False,
        )
        if done.returncode:
            raise CodeError(_told(done.stdout.decode(errors="replace")))
    shutil.copyfile(new / "wheels" / FILE, target / FILE)
    count = "1 package" if len(wheels) == 1 else f"{len(wheels)} packages"
    log.info("installed %s for Python %s", count, found.python)
    _write_through(target)


def _installer() -> list[str]:
    if importlib.util.find_spec("pip"):
        pip = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        return [*pip, "--no-input", "--no-compile", "--root-user-action=ignore", "--no-warn-script-location"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--no-config", "--no-cache", "--python", sys.executable]
    raise CodeError(f"the Python of dtj_trainer, {sys.executable}, has no pip: add pip to the image")


def _told(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith("ERROR:")), lines[-1] if lines else "pip failed")
    platform = sysconfig.get_platform()
    return f"on Python {_python()} of {platform}: {told.removeprefix('ERROR: ')}"


def _read_set(wheels: Path) -> PackageSet:
    """Read what an unpacked archive is for. Raises CodeError for what this Python or this disk can't install."""
    try:
        found = PackageSet.from_json((wheels / FILE).read_bytes())
    except FileNotFoundError:
        raise CodeError(f"the archive has no {FILE}, which `dtj submit` writes") from None
    except ValueError as error:
        raise CodeError(f"{FILE} can't be read: {error}") from None
    if found.python != _python():
        raise CodeError(
            f"the packages are for Python {found.python}, and the image has Python {_python()}: "
            f"submit again with --python {_python()}"
        )
    size = entries = 0
    for path in wheels.iterdir():
        if path.name == FILE:
            continue
        if path.suffix != ".whl" or not path.is_file():
            raise CodeError(f"{path.name!r} is no wheel")
        try:
            with zipfile.ZipFile(path) as wheel:
                size += sum(each.file_size for each in wheel.infolist())
                entries += len(wheel.infolist())
        except zipfile.BadZipFile as error:
            raise CodeError(f"{path.name} is no complete wheel: {error}") from None
    if size > UNPACKED_BYTES:
        raise CodeError(f"the packages have {size:,} bytes unpacked, and may have {UNPACKED_BYTES:,}")
    if entries > MOST_ENTRIES:
        raise CodeError(f"the packages have {entries:,} files, and may have {MOST_ENTRIES:,}")
    return found


def _check_image(found: PackageSet) -> None:
    """Raise CodeError if the image has not the packages that the client left out; name other versions."""
    for name, version in found.image.items():
        try:
            own = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise CodeError(
                f"the packages are for an image with {name} {version}, and this image has no {name}: "
                "submit again with this image"
            ) from None
        # Builds of a version differ in what follows the `+`: 2.13.0+cpu.
        if own.partition("+")[0] != version.partition("+")[0]:
            log.warning("the packages are for an image with %s %s, and this image has %s", name, version, own)


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _write_through(folder: Path) -> None:
    """Wait until the disk has the files: after a power failure, a renamed folder would lack others."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)
