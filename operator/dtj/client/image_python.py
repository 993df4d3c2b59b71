"""The Python in an image: its version, the platform of its wheels, and its packages, as far as dtj knows them."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from packaging import tags
from packaging.utils import canonicalize_name

import dtj
from dtj.api.errors import Unusable

LABEL_PYTHON, LABEL_PACKAGES = "dtj.dev/python", "dtj.dev/packages"
"""Labels of an image: the version of Python such as `3.11`, and `name==version` of each package. Images that are made
from dtj's own images inherit the labels.
"""
PLATFORM = "manylinux_2_36_x86_64"
"""The platform of dtj's own images, which are based on Debian 12."""
_PYTHON = "3.11"
"""The Python of dtj's own images, which are based on Debian 12."""
_FOR_GPUS, _PYTHON_FOR_GPUS = "-cuda", "3.12"
"""The end of the tag of an image for GPUs, and the Python of its base, Ubuntu 24.04: docs/gpu-images.md."""
_PLATFORM = re.compile(r"manylinux_2_(\d{1,2})_(x86_64|aarch64)")
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""The older name of a platform, by the number of the glibc."""
_DOCKER_SECONDS = 10.0


@dataclass(frozen=True)
class ImagePython:
    """The Python for which wheels are chosen."""

    what: str
    """A phrase for messages that tells whose Python this is, such as `this machine's Python`."""
    version: str
    """The version of Python, such as `3.11`."""
    platforms: tuple[str, ...]
    """Tags of the platforms whose wheels run there; the best one first."""
    packages: Mapping[str, str] | None
    """The version of each package, by the normalized name; None: not known."""


def python_of(image: str, version: str | None = None, platform: str | None = None) -> ImagePython:
    """Return the Python of an image.

    version, platform: options of the user, which take precedence over what dtj finds out. Raises Unusable for options
    that can't be used, and for an image whose Python is not known.
    """
    if version is not None and not re.fullmatch(r"3\.\d{1,2}", version):
        raise Unusable(f"--python must be a version such as 3.11, got {version}")
    own, of_own = _own(image)
    labels = {} if of_own == _PYTHON else _labels(image)
    packages = _listed(labels.get(LABEL_PACKAGES)) or own
    found = version or labels.get(LABEL_PYTHON) or of_own
    if not found:
        raise Unusable(
            f"dtj does not know which Python the image {image} has", "give its version, as in --python 3.11"
        )
    return ImagePython(f"the image {image}", found, _platforms(platform or PLATFORM), packages)


def python_here() -> ImagePython:
    """Return the Python of this process. Programs of `dtj run` use this Python and its packages."""
    # Skip packages without a name: the metadata of a damaged installation may lack the name.
    named = ((each.name, each.version) for each in importlib.metadata.distributions())
    found: dict[str, str] = {canonicalize_name(name): version for name, version in named if name}
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return ImagePython("this machine's Python", version, tuple(tags.platform_tags()), found)


@cache
def known_packages() -> dict[str, dict[str, str]]:
    """Return the packages in each of dtj's images of this release, by image name, without dtj's own packages."""
    content: dict[str, dict[str, str]] = json.loads(
        (files("dtj.client") / "image_packages.json").read_text(encoding="utf-8")
    )
    return content


def _own(image: str) -> tuple[Mapping[str, str] | None, str | None]:
    """Return the packages and the Python of an image with the name and tag of one of dtj's images of this release.

    An image with another base or other build arguments has the same pinned packages, but its Python is unknown,
    unless it is an image for GPUs. Docker may have the labels of the image, which tell more.
    """
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    variant = tag.removeprefix(dtj.__version__)
    found = known_packages().get(name)
    if not found or variant == tag or variant[:1] not in ("", "-"):
        return None, None
    own = {**found, "dtjob": dtj.__version__}
    if variant in ("", "-compile"):
        return own, _PYTHON
    # Remove the build after `+`, as in 2.13.0+cpu: another image may have another build. TensorFlow for GPUs is
    # another package.
    own = {name: version.partition("+")[0] for name, version in own.items()}
    if variant != _FOR_GPUS:
        return own, None
    if of_cpus := own.pop("tensorflow-cpu", None):
        own["tensorflow"] = of_cpus
    return own, _PYTHON_FOR_GPUS


def _labels(image: str) -> Mapping[str, str]:
    """Return the labels of an image; empty if Docker on this machine does not have the image."""
    if not (docker := shutil.which("docker")):
        return {}
    command = [docker, "image", "inspect", "--format", "{{json .Config.Labels}}", "--", image]
    try:
        asked = subprocess.run(  # noqa: S603 - docker
            command, capture_output=True, timeout=_DOCKER_SECONDS, check=True, stdin=subprocess.DEVNULL
        )
        labels = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return labels if isinstance(labels, dict) else {}


def _listed(text: str | None) -> Mapping[str, str] | None:
    if not text:
        return None
    pairs = (entry.partition("==") for entry in text.split())
    return {canonicalize_name(name): version for name, _, version in pairs}


def _platforms(platform: str) -> tuple[str, ...]:
    """Return the tags of wheels that run on a platform."""
    if not (found := _PLATFORM.fullmatch(platform)):
        raise Unusable(
            f"--platform must be a tag such as {PLATFORM} or manylinux_2_36_aarch64, got {platform}"
        )
    newest, machine = int(found[1]), found[2]
    oldest = 5 if machine == "x86_64" else 17
    named = []
    for number in range(newest, oldest - 1, -1):
        named.append(f"manylinux_2_{number}_{machine}")
        named += [f"{_LEGACY[number]}_{machine}"] if number in _LEGACY else []
    return (*named, f"linux_{machine}")
