"""Chooses the wheels of a requirements.txt for the Python of an image, and packs them for `spec.code.packages`.

uv resolves the requirements if it is installed, else pip. pip downloads the wheels. Packages that the image has in a
suitable version are left out: for each of them, the resolver gets an empty wheel (stub) of the same version.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from dtj.api.errors import Unusable
from dtj.client.image_python import ImagePython
from dtj_trainer.contract import code_archive
from dtj_trainer.contract.code_archive import CodeError, Packed
from dtj_trainer.contract.package_set import FILE, PackageSet

REQUIREMENTS = "requirements.txt"
"""The default name of the requirements file, in the folder of the entrypoint."""
_PROTECTED = frozenset(
    {"torch", "tensorflow", "tensorflow-cpu", "keras", "horovod", "numpy", "mpi4py", "dtj", "dtjob"}
)
_PROTECTED_PREFIX = "nvidia-"
_ALIASES = {"tensorflow": "tensorflow-cpu"}
"""By the name of a package: another package with the same modules, which an image may have in its place."""
_STUB = "999dtj"
"""The build number of an empty wheel. pip and uv prefer the highest build number of a version."""
_NO_EXTRA = re.compile(r"([\w.-]+)(?:==| )\S+ does not (?:provide the extra|have an extra named)")
_NO_WHEEL = re.compile(r"No matching distribution found for (\S[^(\n]*?)\s*(?:\(from|$)", re.MULTILINE)
_TRIES = 5


@dataclass(frozen=True)
class Wheels:
    """The wheels of an archive of packages, and the packages of the image that the wheels need."""

    paths: tuple[Path, ...]
    found: PackageSet

    @property
    def names(self) -> list[str]:
        """Return name and version of each package."""
        return [" ".join(path.name.split("-")[:2]) for path in self.paths]


def choose(requirements: Path, python: ImagePython, folder: Path, replaced: Collection[str] = ()) -> Wheels:
    """Download the wheels that the requirements need besides the packages of the image.

    folder: where the wheels go; empty. replaced: names of packages of the image that may be hidden.
    Raises Unusable for what has no wheel or would hide a package that the image's other packages were built with.
    """
    try:
        text = requirements.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"{requirements} can't be read: {error}") from None
    allowed = frozenset(map(canonicalize_name, replaced))
    choice = _Choice(requirements.absolute(), python, folder, allowed)
    lines = list(_lines(text))
    choice.check(lines)
    if any("--hash=" in line for line in lines):
        choice.download_pinned(lines)
    else:
        choice.resolve(lines)
    return choice.result()


def pack(wheels: Wheels, archive: BinaryIO) -> Packed:
    """Write the archive of the wheels. Raises Unusable if a limit is exceeded."""
    with tempfile.TemporaryDirectory(prefix="dtj-packages-") as folder:
        told = Path(folder, FILE)
        told.write_text(wheels.found.to_json(), encoding="utf-8")
        entries = [(FILE, told), *((path.name, path) for path in wheels.paths)]
        try:
            # Do not compress: wheels are compressed already, and the bytes, and so the digest, do not depend on zlib.
            return code_archive.pack(entries, archive, compresslevel=0)
        except CodeError as error:
            raise Unusable(f"the packages: {error}", "put the largest packages into the image") from None


class _Choice:
    """One choice of wheels: resolves the requirements, and downloads the files."""

    def __init__(self, file: Path, python: ImagePython, folder: Path, allowed: frozenset[str]) -> None:
        self._file, self._python, self._folder, self._allowed = file, python, folder, allowed
        found = dict(python.packages or {})
        for alias, name in _ALIASES.items():
            if name in found:
                found.setdefault(alias, found[name])
        self._own = {name: of for name, of in found.items() if name not in allowed}
        """Packages of the image that wheels must not replace."""
        self._image: dict[str, str] = {}
        """Packages of the image that the requirements need."""

    def check(self, lines: Iterable[str]) -> None:
        """Refuse requirements that no resolver can fulfil without hiding a package."""
        for needed in self._requirements(lines):
            name = canonicalize_name(needed.name)
            own = self._own.get(name)
            if own is not None and _is_protected(name) and not _fits(needed, own):
                self._refuse_hiding(f"{self._file.name} asks for {needed}, which", needed.name, own)

    def resolve(self, lines: Sequence[str]) -> None:
        """Find all packages that are needed, and download those that the image does not have."""
        asked: dict[str, Requirement] = {
            canonicalize_name(needed.name): needed for needed in self._requirements(lines)
        }
        pinned = {name for name, own in self._own.items() if name not in asked or _fits(asked[name], own)}
        stubs, only_in_image = set(self._own), set[str]()
        with tempfile.TemporaryDirectory(prefix="dtj-resolve-") as temporary:
            for _ in range(_TRIES):
                offered = Path(temporary, "image")
                constraints = Path(temporary, "constraints.txt")
                shutil.rmtree(offered, ignore_errors=True)
                offered.mkdir()
                for name in stubs:
                    self._write_stub(offered, name)
                constraints.write_text("".join(f"{name}=={self._own[name]}\n" for name in sorted(pinned)))
                options = ["--find-links", str(offered), "--constraint", str(constraints)]
                output, failed = self._resolve_once(options)
                # An empty wheel has no extras. Resolve again with the real package if the requirements name an extra.
                with_extra = stubs & set(map(canonicalize_name, _NO_EXTRA.findall(output))) - only_in_image
                missing = _missing(output)
                if with_extra:
                    stubs -= with_extra
                elif missing in self._own.keys() - stubs:
                    # No registry has wheels of the package, as for Horovod. Use the empty wheel: the extras are those
                    # of the build in the image.
                    only_in_image.add(missing)
                    stubs.add(missing)
                elif not failed:
                    return
                elif "ResolutionImpossible" in output and any(not _is_protected(name) for name in pinned):
                    # A requirement needs another version than the image has. Resolve again with only the protected
                    # packages fixed to the image's version.
                    pinned = {name for name in pinned if _is_protected(name)}
                else:
                    break
                for path in self._folder.iterdir():
                    path.unlink()
        raise self._refusal(output)

    def _resolve_once(self, options: list[str]) -> tuple[str, bool]:
        """Return the output of pip, and whether pip failed; an empty output if uv has resolved the requirements."""
        if uv := shutil.which("uv"):
            arguments = ["pip", "compile", "--generate-hashes", "--no-header", "--no-annotate"]
            arguments += ["--emit-index-url", "--emit-find-links", "--python-version", self._python.version]
            newest = re.fullmatch(r"(manylinux_2_\d+)_(\w+)", self._python.platforms[0])
            if newest:
                arguments += ["--python-platform", f"{newest[2]}-{newest[1]}"]
            done = self._run([uv, *arguments, "--only-binary", ":all:", *options, self._file.name])
            if not done.returncode and not _NO_EXTRA.search(done.stderr):
                self.download_pinned(list(_lines(done.stdout)))
                return "", False
        done = self._pip("--requirement", self._file.name, *options)
        return done.stdout + done.stderr, bool(done.returncode)

    def download_pinned(self, lines: Sequence[str]) -> None:
        """Download the packages that the image does not have. lines: all needed packages, with their hashes."""
        left = []
        for line in lines:
            needed = _requirement(line)
            name = canonicalize_name(needed.name) if needed else ""
            if needed and name in self._own and _fits(needed, self._own[name]):
                self._have(name)
            else:
                left.append(line)
        with tempfile.TemporaryDirectory(prefix="dtj-pinned-") as temporary:
            pinned = Path(temporary, "pinned.txt")
            pinned.write_text("\n".join(left) + "\n", encoding="utf-8")
            if all(line.startswith("-") for line in left):
                return
            done = self._pip("--no-deps", "--require-hashes", "--requirement", str(pinned))
        if done.returncode:
            raise self._refusal(done.stdout + done.stderr)

    def result(self) -> Wheels:
        """Return the wheels in the folder, without those of packages that the image has. Raises Unusable."""
        paths = []
        for path in sorted(self._folder.iterdir()):
            try:
                name, version, build, _ = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                raise Unusable(
                    f"{self._file.name}: {path.name} is not a wheel, and pods can't build packages",
                    f"build it with `pip wheel`, and name the file of the wheel in {self._file.name}",
                ) from None
            own = self._own.get(name)
            if (build and f"{build[0]}{build[1]}" == _STUB) or (
                own and Version(own).public == version.public
            ):
                self._have(name)
                path.unlink()
                continue
            # Protect NVIDIA packages always: an image for GPUs has some that known_packages() does not list.
            hides = own or self._python.packages is None or name.startswith(_PROTECTED_PREFIX)
            if hides and _is_protected(name) and name not in self._allowed:
                self._refuse_hiding(f"{self._file.name} brings {name} {version}, which", name, own)
            paths.append(path)
        self._check_size(paths)
        return Wheels(tuple(paths), PackageSet(self._python.version, self._image))

    def _have(self, name: str) -> None:
        """Note that the requirements need a package of the image."""
        packages = self._python.packages or {}
        real = name if name in packages else _ALIASES[name]
        self._image[real] = packages[real]

    def _check_size(self, paths: Sequence[Path]) -> None:
        size = 0
        for path in paths:
            with zipfile.ZipFile(path) as wheel:
                size += sum(each.file_size for each in wheel.infolist())
        if size > code_archive.UNPACKED_BYTES:
            largest = max(paths, key=lambda path: path.stat().st_size).name.split("-")[0]
            raise Unusable(
                f"the packages have {size:,} bytes installed, and the maximum is {code_archive.UNPACKED_BYTES:,}",
                f"put the largest packages into the image, first {largest}",
            )

    def _requirements(self, lines: Iterable[str]) -> Iterator[Requirement]:
        of_target = {
            "python_version": self._python.version,
            "sys_platform": "linux",
            "platform_system": "Linux",
        }
        for line in lines:
            needed = _requirement(line)
            if needed and (needed.marker is None or needed.marker.evaluate(of_target)):
                yield needed

    def _pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        version = self._python.version
        command = [*_pip_command(), "download", "--progress-bar", "off", "--no-input"]
        command += ["--dest", str(self._folder), "--only-binary=:all:", "--python-version", version]
        command += ["--implementation", "cp"]
        command += [
            word for abi in (f"cp{version.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)
        ]
        command += [word for platform in self._python.platforms for word in ("--platform", platform)]
        return self._run([*command, *arguments])

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        # Run in the folder of the requirements file, because paths in the file are relative to the folder.
        return subprocess.run(  # noqa: S603 - uv or pip
            command,
            cwd=self._file.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={
                **os.environ,
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                "NO_COLOR": "1",
            },
            check=False,
        )

    def _write_stub(self, folder: Path, name: str) -> None:
        version = self._python.version.replace(".", "")
        tag = f"cp{version}-cp{version}-{self._python.platforms[0]}"
        written, own = name.replace("-", "_"), self._own[name]
        info = f"{written}-{own}.dist-info"
        with zipfile.ZipFile(folder / f"{written}-{own}-{_STUB}-{tag}.whl", "w") as wheel:
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {own}\n")
            wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            wheel.writestr(f"{info}/RECORD", "")

    def _refusal(self, output: str) -> Unusable:
        """Return an error in words for users from the output of pip or uv."""
        where = f"Python {self._python.version} on {self._python.platforms[0]}"
        if missing := _NO_WHEEL.search(output):
            return Unusable(
                f"{self._file.name}: there is no wheel of {missing[1]} for {where}",
                f"ask for a version that has one, build it with `pip wheel` and name its file in {self._file.name}, "
                "or put the package into the image",
            )
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        told = [line for line in lines if "depends on" in line or "The user requested" in line]
        if told:
            told = [line.replace("The user requested (constraint)", "the image has") for line in told]
            return Unusable(
                f"{self._file.name} does not fit {self._python.what}: {'; '.join(dict.fromkeys(told))}",
                "ask for other versions, or let --replace-package hide the image's package",
            )
        error = next(
            (line for line in lines if line.startswith("ERROR:")), lines[-1] if lines else "no reason"
        )
        return Unusable(f"{self._file.name}: pip can't download the wheels: {error.removeprefix('ERROR: ')}")

    def _refuse_hiding(self, what: str, name: str, own: str | None) -> None:
        image = self._python.what
        raise Unusable(
            f"{what} would hide {name} {own} of {image}"
            if own
            else f"{what} would hide {name} of {image}, whose version dtj does not know",
            f"leave out {name} to use that of the image, or give --replace-package {name}",
        )


def _pip_command() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise Unusable("packages need pip or uv, and this Python has neither", "install pip or uv")


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a requirements file, without comments and continuations."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line := re.sub(r"(^|\s)#.*", "", line).strip():
            yield line


def _requirement(line: str) -> Requirement | None:
    """Return the requirement of a line; None for an option, a path, or a line that pip refuses."""
    try:
        return Requirement(line.partition(" --hash=")[0])
    except InvalidRequirement:
        return None


def _missing(output: str) -> str:
    """Return the package for which pip found no wheel, from the output of pip; empty if there is none."""
    found = _NO_WHEEL.search(output)
    return canonicalize_name(re.split(r"[\[<>=!~;\s]", found[1])[0]) if found else ""


def _fits(needed: Requirement, version: str) -> bool:
    return needed.url is None and needed.specifier.contains(version, prereleases=True)


def _is_protected(name: str) -> bool:
    return name in _PROTECTED or name.startswith(_PROTECTED_PREFIX)
