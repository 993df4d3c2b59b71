#!/usr/bin/env python3
"""Build dtj's images. An image is rebuilt only after a change of its inputs.

Progress goes to stderr. With --print-archives, the path of every archive (in the format of `docker save`) is printed
on a line of its own, for `ctr -n k8s.io images import ARCHIVE` or `kind load image-archive ARCHIVE`.

A base image counts as unchanged while its name is the same. Give an image whose tag moves by its digest
(`--base nvidia/cuda@sha256:…`), or remove the archive to build on the tag's new content.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
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
from image_packages import has_labels, labels_of, package_labels
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
PROJECT = REPOSITORY / "pyproject.toml"
GPU_CHECK = DOCKER / "gpu_check.py"
ARCHIVES = CACHE / "images"
KEPT_ARCHIVES = 2
"""Of each image: two worktrees that build in turn find their archives again. An archive has up to 1.4 GB."""
BUILD_BACKEND = "setuptools"
PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"}
"""Build arguments that every Dockerfile accepts."""


TITLES = {
    "dtj-operator": "dtj's operator",
    "dtj-horovod-base": "Horovod for PyTorch, Open MPI and sshd",
    "dtj-trainer-horovod": "dtj's trainer with Horovod for PyTorch",
    "dtj-serve": "dtj's server of trained models",
    "dtj-tensorboard": "TensorBoard for a job's bucket",
    "dtj-tensorflow-base": "TensorFlow",
    "dtj-trainer-tensorflow": "dtj's trainer with TensorFlow",
    "dtj-trainer-tensorflow-horovod": "dtj's trainer with TensorFlow and Horovod",
}
LICENSES = "Apache-2.0"
SERVE_PARTS = ("contract", "artifacts", "data", "serving")
"""The packages of dtj_trainer that the server imports."""
EXPORT = ("onnx", "onnxruntime")
"""What exports a trained model, beside the converter of its framework: the extra `export` without the HTTP server."""


def labels(tag: str, base: str, origin: dict[str, str]) -> dict[str, str]:
    """Return the labels of an image, with the names of the OCI image specification.

    origin: `revision` and `source`, if known. A build from a working tree has none, because no commit describes it.
    """
    name, _, of = tag.partition(":")
    values = {"title": TITLES[name], "version": of, "licenses": LICENSES, "base.name": base, **origin}
    return {f"org.opencontainers.image.{key}": value for key, value in values.items()}


@dataclass(frozen=True)
class Image:
    """One Dockerfile, its images, and its build context."""

    name: str
    tags: dict[str, str]
    """Target stage by tag."""
    requirements: dict[str, list[str]]
    """Lines by the name of a requirements file in the context."""
    sources: list[Path]
    """Files of this repository that are copied to dtj/ in the context."""
    alone: list[str] = field(default_factory=list)
    """Requirements (alone.txt) to install without dependencies, because the image has these under another name."""
    args: dict[str, str] = field(default_factory=dict)
    horovod: str = ""
    """The framework that Horovod is compiled for, one of FRAMEWORKS; empty: the image has no Horovod."""
    origin: dict[str, str] = field(default_factory=dict)
    """Labels that differ from build to build."""
    variant: str = ""
    """Distinguishes archives with another base or other build arguments from the default ones."""

    @property
    def dockerfile(self) -> Path:
        """The image's Dockerfile."""
        return DOCKER / f"{self.name}.Dockerfile"

    def wheels(self) -> list[Path]:
        """Return the wheels for wheelhouse/ in the context; build or download those that are not cached."""
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
        """Return a hash of all inputs of the image; without `with_sources`, of all but this repository's sources.

        A base image counts by its name, because the key must not need an engine.
        """
        parts: list[str | Path] = [self.dockerfile, DOCKER / "build.py", DOCKER / "base.py"]
        if self.horovod:  # A wheel's folder name contains a hash of these.
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
            parts += [str(source.relative_to(REPOSITORY)), _packaged() if source == PROJECT else source]
        return digest(parts)

    def write_context(self, folder: Path, wheels: list[Path]) -> None:
        """Write the build context that the Dockerfile copies from."""
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


def _packaged() -> str:
    """Return what pyproject.toml says of the package, without the settings of linters and tests."""
    project = tomllib.loads(PROJECT.read_text())
    extras = project["project"].pop("optional-dependencies")
    of_users = {name: needs for name, needs in extras.items() if not name.startswith("dev")}
    return str([project["build-system"], project["project"], of_users, project["tool"]["setuptools"]])


def images(base: str, args: dict[str, str]) -> list[Image]:
    """Return all images of this repository, for one base image and additional build arguments."""
    project = [PROJECT, *(REPOSITORY / name for name in ("README.md", "LICENSE"))]
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
                *(trainer / name for name in ("__init__.py", "py.typed")),
                *_files(trainer / "contract"),
            ],
        ),
        Image(
            name="trainer-horovod",
            tags={
                f"dtj-horovod-base:{version()}": "horovod",
                f"dtj-trainer-horovod:{version()}": "trainer",
                f"dtj-trainer-horovod:{version()}-compile": "compile",
            },
            requirements={
                "horovod": _pinned(*RUNTIME_NEEDS, "torch", "setuptools", "wheel"),
                # The image has PyTorch already, perhaps in another version than the pinned one.
                "trainer": [
                    *(
                        line
                        for line in requirements_of("torch", "tracking")
                        if not line.startswith("torch==")
                    ),
                    *_pinned(*EXPORT, "onnxscript"),
                ],
            },
            sources=[*project, *_files(trainer)],
            args=compiled,
            horovod="torch",
        ),
        # One archive for all three images, so that common layers, such as TensorFlow's gigabyte, are stored once.
        Image(
            name="trainer-tensorflow",
            tags={
                f"dtj-tensorflow-base:{version()}": "tensorflow",
                f"dtj-trainer-tensorflow:{version()}": "trainer",
                f"dtj-trainer-tensorflow-horovod:{version()}": "trainer-horovod",
            },
            requirements={
                "tensorflow": _pinned(*RUNTIME_NEEDS, USUAL_TENSORFLOW, "setuptools", "wheel"),
                # The image has TensorFlow already, perhaps as another package than the pinned one.
                "trainer": [
                    *(line for line in requirements_of("tensorflow", "tracking") if "tensorflow" not in line),
                    *_pinned(*EXPORT, "tf2onnx"),
                ],
            },
            # Keras 2, for scripts that need it. It depends on `tensorflow`, but the image has `tensorflow-cpu`.
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
                *(trainer / name for name in ("__init__.py", "py.typed")),
                *_files(trainer / "contract"),
                *(trainer / name for name in ("clock.py", "parent_death.py")),
                *(
                    trainer / name
                    for name in ("record_pod.py", "tensorboard_pod.py", "tensorboard_program.py")
                ),
                *_files(trainer / "artifacts"),
            ],
        ),
        Image(
            name="serve",
            tags={f"dtj-serve:{version()}": "serve"},
            requirements={"serve": requirements_of("serving")},
            sources=[
                *project,
                *(trainer / name for name in ("__init__.py", "py.typed")),
                *(path for part in SERVE_PARTS for path in _files(trainer / part)),
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
    """Return the image without its targets that contain Horovod."""
    tags = {tag: target for tag, target in image.tags.items() if "horovod" not in target}
    return replace(image, tags=tags, horovod="")


def _taken(args: dict[str, str], dockerfile: Path) -> dict[str, str]:
    """Select the build arguments that the Dockerfile declares, and the proxies, which need no declaration."""
    declared = set(re.findall(r"^\s*ARG\s+(\w+)", dockerfile.read_text(), re.MULTILINE | re.IGNORECASE))
    return {name: value for name, value in args.items() if name in declared or name.upper() in PROXIES}


def _variant(base: str, args: dict[str, str]) -> str:
    """Return a short hash of base and arguments; empty for the defaults."""
    return "" if base == IMAGE and not args else digest([base, str(sorted(args.items()))])[:8]


def _prefix(name: str, variant: str) -> str:
    return f"{name}-{variant}" if variant else name


def _pinned(*names: str) -> list[str]:
    return [f"{name}=={pins()[name]}" for name in names]


def _dependencies() -> list[str]:
    return list(tomllib.loads(PROJECT.read_text())["project"]["dependencies"])


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _wheel_fits_image() -> bool:
    """Return whether a wheel compiled on this machine runs in the image: same Debian, same Python."""
    release = Path("/etc/os-release")
    same_debian = release.exists() and "VERSION_CODENAME=bookworm" in release.read_text()
    return same_debian and sys.version_info[:2] == (3, 11)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy(source, target)


def archive_of(image: Image) -> Path:
    """Return the path of the image's archive; build it if it does not exist."""
    wheels = image.wheels()
    archive = ARCHIVES / f"{_prefix(image.name, image.variant)}-{image.key(wheels)}.tar"
    if _is_kept(archive):
        return archive
    with one_at_a_time(f"image-{image.name}"):
        if _is_kept(archive):
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
                values = labels(tag, image.args["BASE_IMAGE"], image.origin)
                known = package_labels(tag, wheels, image.args)
                docker.build(context, image.dockerfile, target, tag, image.args, values | known)
                if (
                    has_labels(tag) and not known
                ):  # The same layers once more, with what the image says of itself.
                    values |= labels_of(docker, tag)
                    docker.build(context, image.dockerfile, target, tag, image.args, values)
            _save(docker, list(image.tags), archive)
    return archive


def archive_of_context(
    context: Path, dockerfile: Path, tag: str, base: str = IMAGE, args: dict[str, str] | None = None
) -> Path:
    """Return the archive of a user's own image, whose Dockerfile may start from one of dtj's images.

    `base` and `args` apply to dtj's images; the Dockerfile gets those of `args` that it declares.
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
    if _is_kept(archive):
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
    """Return whether the archive's tags denote the archive's own images in the engine.

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
    for old in _older(archive)[KEPT_ARCHIVES - 1 :]:
        old.unlink()
    if docker.own:
        docker.run("image", "prune", "--force")
    say(f"{archive.name}: {archive.stat().st_size / 2**20:.0f} MiB")


def _is_kept(archive: Path) -> bool:
    """Return whether the archive exists; its time then says that it is in use."""
    if not archive.exists():
        return False
    archive.touch()
    return True


def _older(archive: Path) -> list[Path]:
    """List other archives of the same image and variant, whose names differ only in the key, newest first."""
    prefix = archive.name.rsplit("-", 1)[0]
    same = re.compile(re.escape(prefix) + r"-[0-9a-f]{16}\.tar")
    others = [path for path in archive.parent.iterdir() if path != archive and same.fullmatch(path.name)]
    return sorted(others, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--image",
        action="append",
        help="only this one (operator, trainer-horovod, trainer-tensorflow, tensorboard, serve)",
    )
    parser.add_argument(
        "--base",
        default=IMAGE,
        help="base image (default: %(default)s); an unchanged name counts as an unchanged image",
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
    # The engine has sessions of its own: who ends this program early must not leave the engine running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
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
            values = {"revision": arguments.revision, "source": arguments.source}
            origin = {name: value for name, value in values.items() if value}
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
