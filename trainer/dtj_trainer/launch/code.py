"""Brings the code of a job (`spec.code`) and its packages into the workspace, anew for each start of the programs."""

from __future__ import annotations

import ctypes
import errno
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
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from dtj_trainer import contract
from dtj_trainer.artifacts.s3 import NoSuchKey, S3Error, make_client, parse_s3_uri, retry_transient, sentences
from dtj_trainer.contract.code_archive import (
    DIGEST,
    MOST_ENTRIES,
    PACKED_BYTES,
    UNPACKED_BYTES,
    CodeError,
    unpack,
)
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.contract.package_set import FILE, PackageSet
from dtj_trainer.launch.settings import Settings
from dtj_trainer.parent_death import die_with_parent

log = logging.getLogger(__name__)

_CHUNK = 1024**2


class CodeUnavailable(Exception):
    """Code or packages could not be brought into the workspace. The message says why; `cause` is the class of the
    failure.
    """

    def __init__(self, message: str, cause: FailureClass) -> None:
        super().__init__(message)
        self.cause = cause


def bring_code(settings: Settings) -> None:
    """Unpack the archive of the job, if the job has one. Raises CodeUnavailable.

    A bucket that does not answer is asked again for the sync timeout.
    """
    if settings.code is None:
        return
    source, digest = settings.code
    folder = settings.root / contract.CODE
    with (
        unavailable(source, f"the code could not be unpacked to {folder}"),
        local_archive(source, settings, contract.CODE_FILE) as archive,
    ):
        unpack(archive, digest, folder)


@contextmanager
def unavailable(source: str, what: str) -> Iterator[None]:
    """Raise the errors of an archive as CodeUnavailable. what: the begin of the message for an OSError."""
    try:
        yield
    except (CodeError, NoSuchKey, ValueError) as error:
        raise CodeUnavailable(f"{source}: {error}", FailureClass.CODE_UNUSABLE) from error
    except S3Error as error:
        raise CodeUnavailable(f"{source}: {error}", FailureClass.ARTIFACTS_UNAVAILABLE) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename == source:
            what = f"the archive {source} does not exist"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cause = FailureClass.DISK_FULL if full else FailureClass.CODE_UNUSABLE
        raise CodeUnavailable(f"{what}: {error}", cause) from error


@contextmanager
def local_archive(source: str, settings: Settings, name: str) -> Iterator[Path]:
    """Give the path of an archive; an archive in a bucket is copied for the time of the context.

    A bucket that does not answer is asked again for the sync timeout. Raises S3Error; CodeError for an object above
    the limit of an archive.
    """
    if not source.startswith("s3://"):
        yield Path(source)
        return
    copy = settings.root / f".{name}"
    try:
        retry_transient(
            lambda: _download(source, copy),
            timeout=settings.sync_timeout,
            on_wait=lambda error, seconds: log.warning("%s; the next try is in %.0f s", error, seconds),
        )
        yield copy
    finally:
        copy.unlink(missing_ok=True)


def _download(uri: str, copy: Path) -> None:
    place = parse_s3_uri(uri)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with sentences(uri):
        answer = make_client().get_object(Bucket=place.bucket, Key=place.prefix)
        if (size := answer["ContentLength"]) > PACKED_BYTES:
            raise CodeError(f"the archive has {size:,} bytes, and the maximum is {PACKED_BYTES:,}")
        with closing(answer["Body"]) as body, copy.open("wb") as file:
            read: Callable[[int], bytes] = body.read
            while content := read(_CHUNK):
                file.write(content)


# Installs the packages of a job (`spec.code.packages`): once a pod, or once a node where pods share a cache.
#
# A set of packages is a folder named by the digest of its archive, beside a file that is locked: exclusively while
# the set is installed, shared while a pod uses the set. The complete set is renamed into place, so that a killed
# installation leaves no incomplete set. The link PACKAGES in the workspace points to the pod's set.

KEPT_SETS = 8
"""A shared folder keeps this many sets, and all sets that pods use. Of the others, those that were used least
recently are removed first."""
_LOOK_SECONDS = 0.1


def bring_packages(settings: Settings) -> None:
    """Install the packages of the job, if the job has any. Raises CodeUnavailable."""
    if settings.packages is None:
        return
    source, digest = settings.packages
    with unavailable(source, "the packages could not be installed"):
        if not re.fullmatch(DIGEST, digest):
            raise CodeError(
                f"{contract.ENV_PACKAGES_DIGEST} must be sha256: and 64 hex digits, not {digest!r}"
            )
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
            "this pod installs the packages for itself, because it can't use the shared folder %s: %s",
            folder,
            error,
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
        shutil.rmtree(new, ignore_errors=True)  # a killed installation may have left the folder
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
    """Lock a set until this process ends: shared if the set exists, else exclusively.

    Raises TimeoutError if another process does not finish its installation; PermissionError for a set of another
    user, who could change the set.
    """
    deadline = time.monotonic() + seconds
    path = place.with_suffix(".lock")
    while True:
        there = _is_own(place)
        # Keep the descriptor open at exec, so that a program that replaces dtj-launch in this process keeps the lock.
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
            raise TimeoutError(f"another process has held the lock {path} for {seconds:.0f} s")
        time.sleep(_LOOK_SECONDS)


def _is_own(place: Path) -> bool:
    try:
        status = place.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{place} is not a folder")
    if status.st_uid != os.geteuid():
        raise PermissionError(
            f"the folder {place} belongs to the user {status.st_uid}, and this pod runs as {os.geteuid()}"
        )
    return True


def _remove_unused(folder: Path) -> None:
    """Remove the sets above KEPT_SETS that no pod uses."""
    with os.scandir(folder) as entries:
        locks = [(each.stat().st_mtime, Path(each)) for each in entries if each.name.endswith(".lock")]
    for _, path in sorted(locks, reverse=True)[KEPT_SETS:]:
        with suppress(OSError), path.open("rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Rename the set first, so that no process takes a half-removed set for a whole one. A killed installation
            # may have left a folder of the new name.
            unused = path.with_suffix(".new")
            shutil.rmtree(unused, ignore_errors=True)
            with suppress(FileNotFoundError):
                path.with_suffix("").rename(unused)
            shutil.rmtree(unused, ignore_errors=True)
            path.unlink()


def _install(new: Path, lock: int) -> None:
    """Install the wheels of `new` to its folder `set`, and wait until the disk has the content of that folder."""
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
    return f"the installation fails on Python {_python()} of {platform}: {told.removeprefix('ERROR: ')}"


def _read_set(wheels: Path) -> PackageSet:
    """Read for which Python and image an unpacked archive is. Raises CodeError if it can't be installed here."""
    try:
        found = PackageSet.from_json((wheels / FILE).read_bytes())
    except FileNotFoundError:
        raise CodeError(f"the archive has no {FILE}, which `dtj submit` writes") from None
    except ValueError as error:
        raise CodeError(f"the archive's {FILE} is invalid: {error}: run `dtj submit` again") from None
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
            raise CodeError(f"the archive contains {path.name!r}, which is not a wheel file (.whl)")
        try:
            with zipfile.ZipFile(path) as wheel:
                size += sum(each.file_size for each in wheel.infolist())
                entries += len(wheel.infolist())
        except zipfile.BadZipFile as error:
            raise CodeError(f"{path.name} is no complete wheel: {error}") from None
    if size > UNPACKED_BYTES:
        raise CodeError(f"the packages have {size:,} bytes unpacked, and the maximum is {UNPACKED_BYTES:,}")
    if entries > MOST_ENTRIES:
        raise CodeError(f"the packages have {entries:,} files, and the maximum is {MOST_ENTRIES:,}")
    return found


def _check_image(found: PackageSet) -> None:
    """Raise CodeError if the image lacks a package that the client left out; log a warning for another version."""
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
    """Wait until the disk has the files: after a power failure, a renamed folder might otherwise lack some of
    them.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)
