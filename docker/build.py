#!/usr/bin/env python3
"""Build dtj's images, each only when something it is made of has changed.

Progress goes to stderr. With --print-archives every archive (as `docker save` writes it) is printed on
a line of its own: `ctr -n k8s.io images import ARCHIVE`, or `kind load image-archive ARCHIVE`.

A base image counts as unchanged while its name is the same: give one that moves by its digest
(`--base nvidia/cuda@sha256:…`), or remove the archive to build on its new content.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path

from base import IMAGE, ensure_base
from combinations import USUAL_TENSORFLOW, for_gpus, refuse
from engine import Engine, engine
from host import CACHE, REPOSITORY, BuildError, digest, one_at_a_time, pins, say, version
from wheels import (
    FRAMEWORKS,
    HOROVOD_VERSION,
    PATCHES,
    RUNTIME_NEEDS,
    horovod_source,
    horovod_wheel,
    requirements_of,
    wheelhouse,
)

DOCKER = REPOSITORY / "docker"
GPU_CHECK = DOCKER / "gpu_check.py"
ARCHIVES = CACHE / "images"
BUILD_BACKEND = "setuptools"
PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"}
"""Build arguments that every Dockerfile takes."""


TITLES = {
    "dtj-operator": "dtj's operator",
    "dtj-horovod-base": "Horovod for PyTorch, Open MPI and sshd",
    "dtj-trainer-horovod": "dtj's trainer with Horovod for PyTorch",
    "dtj-tensorboard": "TensorBoard for a job's bucket",
    "dtj-tensorflow-base": "TensorFlow",
    "dtj-trainer-tensorflow": "dtj's trainer with TensorFlow",
    "dtj-trainer-tensorflow-horovod": "dtj's trainer with TensorFlow and Horovod",
}
LICENSES = "Apache-2.0"


def labels(tag: str, base: str, origin: dict[str, str]) -> dict[str, str]:
    """What an image says of itself, in the names of the OCI image specification.

    origin: `revision` and `source`, where they are known; not those of a working tree, which they would not tell.
    """
    name, _, of = tag.partition(":")
    said = {"title": TITLES[name], "version": of, "licenses": LICENSES, "base.name": base, **origin}
    return {f"org.opencontainers.image.{key}": value for key, value in said.items()}


@dataclass(frozen=True)
class Image:
    """One Dockerfile, the images made of it, and the context it wants."""

    name: str
    tags: dict[str, str]
    """Tag -> target stage."""
    requirements: dict[str, list[str]]
    """Name of a requirements file in the context -> its lines."""
    sources: list[Path]
    """Files of this repository that go into the context's dtj/."""
    alone: list[str] = field(default_factory=list)
    """Requirements (alone.txt) that are installed without what they ask for: the image has it by another name."""
    args: dict[str, str] = field(default_factory=dict)
    horovod: str = ""
    """The framework that Horovod is compiled for, one of FRAMEWORKS; empty: no Horovod in it."""
    origin: dict[str, str] = field(default_factory=dict)
    """Of the labels that differ from build to build."""
    variant: str = ""
    """What tells the archives of another base or other build arguments from the usual ones."""

    @property
    def dockerfile(self) -> Path:
        """The file that says how it is built."""
        return DOCKER / f"{self.name}.Dockerfile"

    def wheels(self) -> list[Path]:
        """What goes into the context's wheelhouse/, built or downloaded where it isn't cached."""
        if self.args.get("PACKAGES_FROM") == "index":
            wanted = {"build": [f"{BUILD_BACKEND}=={pins()[BUILD_BACKEND]}"]}
        else:
            wanted = {**self.requirements, "build": [f"{BUILD_BACKEND}=={pins()[BUILD_BACKEND]}"]}
        lines = [line for lines in wanted.values() for line in lines]
        found = sorted(wheelhouse(self.name, lines).glob("*.whl"))
        if self.alone and self.args.get("PACKAGES_FROM") != "index":
            found += sorted(wheelhouse(f"{self.name}-alone", self.alone, alone=True).glob("*.whl"))
        if self.horovod and self.args.get("HOROVOD_FROM") != "source":
            found.append(horovod_wheel(self.horovod))
        return found

    def key(self, wheels: list[Path], *, with_sources: bool = True) -> str:
        """A hash of all that the image is made of; without the sources, of what lies below them.

        Of a base image the name counts alone: what it holds is asked of no engine.
        """
        parts: list[str | Path] = [self.dockerfile, DOCKER / "build.py", DOCKER / "base.py"]
        if self.horovod:  # as source; as a wheel it has all of this in its folder's name
            parts += [GPU_CHECK, HOROVOD_VERSION, str(sorted(self._horovod_options().items())), *PATCHES]
        parts += [
            str(sorted(self.origin.items())),
            str(sorted(self.args.items())),
            str(sorted(self.tags.items())),
            str(self.requirements),
            str(self.alone),
        ]
        parts += [f"{wheel.parent.name}/{wheel.name}" for wheel in wheels]
        for source in self.sources if with_sources else []:
            parts += [str(source.relative_to(REPOSITORY)), source]
        return digest(parts)

    def write_context(self, folder: Path, wheels: list[Path]) -> None:
        """Put together what the Dockerfile copies from."""
        for name in ("wheelhouse", "requirements", "horovod", "dtj"):
            (folder / name).mkdir()
        for wheel in wheels:
            _link(wheel, folder / "wheelhouse" / wheel.name)
        for name, lines in {**self.requirements, "alone": self.alone}.items():
            (folder / "requirements" / f"{name}.txt").write_text("\n".join(sorted(lines)) + "\n")
        shutil.copy(REPOSITORY / "constraints.txt", folder / "requirements")
        shutil.copy(GPU_CHECK, folder / "requirements")
        (folder / "requirements/horovod-build.env").write_text(
            "".join(f"{name}={value}\n" for name, value in self._horovod_options().items())
        )
        if self.horovod and self.args.get("HOROVOD_FROM") == "source":
            with tempfile.TemporaryDirectory() as temporary:
                shutil.copytree(horovod_source(Path(temporary)), folder / "horovod", dirs_exist_ok=True)
        for source in self.sources:
            target = folder / "dtj" / source.relative_to(REPOSITORY)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)

    def _horovod_options(self) -> dict[str, str]:
        return FRAMEWORKS[self.horovod].build_options if self.horovod else {}


def images(base: str, args: dict[str, str]) -> list[Image]:
    """All images of this repository, for one base image and the build arguments given on top."""
    project = [REPOSITORY / name for name in ("pyproject.toml", "README.md", "LICENSE")]
    project = [path for path in project if path.exists()]
    trainer = REPOSITORY / "trainer/dtj_trainer"
    compiled = {} if _wheel_fits_image() else {"HOROVOD_FROM": "source"}
    every = [
        Image(
            name="operator",
            tags={f"dtj-operator:{version()}": "operator"},
            requirements={"operator": [*_dependencies(), *requirements_of("operator")]},
            sources=[
                *project,
                *_files(REPOSITORY / "operator/dtj"),
                *(trainer / name for name in ("__init__.py", "py.typed", "contract.py", "failure_class.py")),
            ],
        ),
        Image(
            name="trainer-horovod",
            tags={
                f"dtj-horovod-base:{version()}": "horovod",
                f"dtj-trainer-horovod:{version()}": "trainer",
            },
            requirements={
                "horovod": _pinned(*RUNTIME_NEEDS, "torch", "setuptools", "wheel"),
                # Its PyTorch is in the image: it may be another version than the one named there.
                "trainer": [line for line in requirements_of("torch") if not line.startswith("torch==")],
            },
            sources=[*project, *_files(trainer)],
            args=compiled,
            horovod="torch",
        ),
        # One archive for all three: their layers lie in it once, TensorFlow's gigabyte too.
        Image(
            name="trainer-tensorflow",
            tags={
                f"dtj-tensorflow-base:{version()}": "tensorflow",
                f"dtj-trainer-tensorflow:{version()}": "trainer",
                f"dtj-trainer-tensorflow-horovod:{version()}": "trainer-horovod",
            },
            requirements={
                "tensorflow": _pinned(*RUNTIME_NEEDS, USUAL_TENSORFLOW, "setuptools", "wheel"),
                # Its TensorFlow is in the image: it may be another package than the one named there.
                "trainer": [line for line in requirements_of("tensorflow") if "tensorflow" not in line],
            },
            # Keras 2, for scripts that need it. It asks for `tensorflow`, where the image has `tensorflow-cpu`.
            alone=_pinned("tf-keras"),
            sources=[*project, *_files(trainer)],
            args=compiled,
            horovod="tensorflow",
        ),
        Image(
            name="tensorboard",
            tags={f"dtj-tensorboard:{version()}": "tensorboard"},
            requirements={"tensorboard": [*_pinned("boto3"), *requirements_of("tensorboard")]},
            sources=[
                *project,
                *(trainer / name for name in ("__init__.py", "py.typed", "contract.py", "failure_class.py")),
                *(trainer / name for name in ("clock.py", "parent_death.py")),
                *(trainer / name for name in ("tensorboard_pod.py", "tensorboard_program.py")),
                *_files(trainer / "artifacts"),
            ],
        ),
    ]
    taken = {image.name: _taken(args, image.dockerfile) for image in every}
    return [
        _without_horovod(image) if image.horovod == "tensorflow" and for_gpus(image.args) else image
        for image in (
            replace(
                image,
                args={"BASE_IMAGE": base, **image.args, **taken[image.name]},
                variant=_variant(base, taken[image.name]),
            )
            for image in every
        )
    ]


def _without_horovod(image: Image) -> Image:
    """The image without those of its targets that have Horovod."""
    tags = {tag: target for tag, target in image.tags.items() if "horovod" not in target}
    return replace(image, tags=tags, horovod="")


def _taken(args: dict[str, str], dockerfile: Path) -> dict[str, str]:
    """Those build arguments that the Dockerfile declares, and the proxies, which need no declaration."""
    declared = set(re.findall(r"^\s*ARG\s+(\w+)", dockerfile.read_text(), re.MULTILINE | re.IGNORECASE))
    return {name: value for name, value in args.items() if name in declared or name.upper() in PROXIES}


def _variant(base: str, args: dict[str, str]) -> str:
    """A short hash of what was asked for; empty for the usual base and no arguments."""
    return "" if base == IMAGE and not args else digest([base, str(sorted(args.items()))])[:8]


def _prefix(name: str, variant: str) -> str:
    return f"{name}-{variant}" if variant else name


def _pinned(*names: str) -> list[str]:
    return [f"{name}=={pins()[name]}" for name in names]


def _dependencies() -> list[str]:
    return list(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"])


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _wheel_fits_image() -> bool:
    """Whether a wheel compiled on this machine runs in the image: same Debian, same Python."""
    release = Path("/etc/os-release")
    same_debian = release.exists() and "VERSION_CODENAME=bookworm" in release.read_text()
    return same_debian and sys.version_info[:2] == (3, 11)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy(source, target)


def archive_of(image: Image) -> Path:
    """The path of the image's archive, built when it isn't there."""
    wheels = image.wheels()
    archive = ARCHIVES / f"{_prefix(image.name, image.variant)}-{image.key(wheels)}.tar"
    if archive.exists():
        return archive
    with one_at_a_time(f"image-{image.name}"):
        if archive.exists():
            return archive
        with (
            engine() as docker,
            tempfile.TemporaryDirectory(prefix="context-", dir=_made(ARCHIVES)) as temporary,
        ):
            context = Path(temporary)
            image.write_context(context, wheels)
            for base in {image.args["BASE_IMAGE"], image.args.get("BUILD_IMAGE", image.args["BASE_IMAGE"])}:
                ensure_base(docker, base)
            for tag, target in image.tags.items():
                say(f"building {tag}")
                said = labels(tag, image.args["BASE_IMAGE"], image.origin)
                docker.build(context, image.dockerfile, target, tag, image.args, said)
            _save(docker, list(image.tags), archive)
    return archive


def archive_of_context(
    context: Path, dockerfile: Path, tag: str, base: str = IMAGE, args: dict[str, str] | None = None
) -> Path:
    """The archive of a user's own image, whose Dockerfile may start from one of ours.

    `base` and `args` are for ours; the Dockerfile takes those of `args` that it declares.
    """
    args = args or {}
    parts: list[str | Path] = [dockerfile, tag, base, str(sorted(args.items()))]
    for path in _files(context):
        parts += [str(path.relative_to(context)), path]
    text = dockerfile.read_text()
    needed = [image for image in images(base, args) if any(ours in text for ours in image.tags)]
    for image in needed:
        refuse(image.name, image.args, args)
    ours = {image.name: archive_of(image) for image in needed}
    for image in needed:
        bare = all("-base:" in tag for tag in image.tags if tag in text)
        parts.append(image.key(image.wheels(), with_sources=not bare))
    name = tag.replace("/", "_").replace(":", "_")
    archive = ARCHIVES / f"{_prefix(name, _variant(base, args))}-{digest(parts)}.tar"
    if archive.exists():
        return archive
    with one_at_a_time(f"image-{name}"), engine() as docker:
        for image in needed:
            if not _holds(docker, ours[image.name]):
                say(f"loading {image.name}")
                docker.run("load", "--input", ours[image.name])
        if not needed:
            ensure_base(docker, base)
        say(f"building {tag}")
        docker.build(context, dockerfile, None, tag, _taken(args, dockerfile))
        _save(docker, [tag], archive)
    return archive


def _holds(docker: Engine, archive: Path) -> bool:
    """Whether the archive's tags are, in the engine, the very images of the archive.

    A build of another variant leaves other images under the same tags.
    """
    with tarfile.open(archive) as content:
        manifest = content.extractfile("manifest.json")
        assert manifest is not None
        entries = json.load(manifest)
    return all(
        docker.id_of(tag) == f"sha256:{Path(entry['Config']).name.removesuffix('.json')}"
        for entry in entries
        for tag in entry["RepoTags"]
    )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _save(docker: Engine, tags: list[str], archive: Path) -> None:
    say(f"saving {archive.name}")
    new = _made(archive.parent) / f"{archive.stem}.new"
    docker.run("save", "--output", new, *tags)
    new.rename(archive)
    for old in _older(archive):
        old.unlink()
    if docker.own:
        docker.run("image", "prune", "--force")
    say(f"{archive.name}: {archive.stat().st_size / 2**20:.0f} MiB")


def _older(archive: Path) -> list[Path]:
    """Other archives of the same image and variant: the same name, but for the key."""
    prefix = archive.name.rsplit("-", 1)[0]
    same = re.compile(re.escape(prefix) + r"-[0-9a-f]{16}\.tar")
    return [path for path in archive.parent.iterdir() if path != archive and same.fullmatch(path.name)]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--image",
        action="append",
        help="only this one (operator, trainer-horovod, trainer-tensorflow, tensorboard)",
    )
    parser.add_argument(
        "--base",
        default=IMAGE,
        help="base image (default: %(default)s); what its name stands for is taken not to change",
    )
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--revision", help="commit, for a label of the images")
    parser.add_argument("--source", help="URL of the repository, likewise")
    parser.add_argument("--print-archives", action="store_true", help="print the archives' paths")
    own = parser.add_argument_group("another image, from a Dockerfile that may start from dtj's")
    own.add_argument("--context", type=Path)
    own.add_argument("--file", type=Path, help="default: Dockerfile in the context")
    own.add_argument("--tag")
    arguments = parser.parse_args()
    if (arguments.context is None) != (arguments.tag is None):
        parser.error("--context and --tag go together")
    if malformed := [argument for argument in arguments.build_arg if "=" not in argument]:
        parser.error(f"--build-arg takes NAME=VALUE, not {malformed[0]}")
    args = dict(argument.split("=", 1) for argument in arguments.build_arg)
    try:
        if arguments.context:
            context = arguments.context.resolve()
            dockerfile = (arguments.file or context / "Dockerfile").resolve()
            archives = [archive_of_context(context, dockerfile, arguments.tag, arguments.base, args)]
        else:
            every = images(arguments.base, args)
            unknown = set(arguments.image or []) - {image.name for image in every}
            if unknown:
                parser.error(f"no such image: {', '.join(sorted(unknown))}")
            said = {"revision": arguments.revision, "source": arguments.source}
            origin = {name: value for name, value in said.items() if value}
            every = [replace(image, origin=origin) for image in every]
            chosen = [image for image in every if not arguments.image or image.name in arguments.image]
            for image in chosen:
                refuse(image.name, image.args, args)
            if loose := set(args) - {name for image in chosen for name in image.args}:
                parser.error(f"no Dockerfile declares {', '.join(sorted(loose))}")
            archives = [archive_of(image) for image in chosen]
    except (BuildError, subprocess.SubprocessError) as error:
        sys.exit(f"docker/build.py: {error}")
    if arguments.print_archives:
        print("\n".join(str(archive) for archive in archives))


if __name__ == "__main__":
    main()
