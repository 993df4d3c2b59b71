"""What is known of the Python in an image: its version, the platform of its wheels, and the packages that it has."""

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
"""Of dtj's own images: Debian 12."""
_PLATFORM = re.compile(r"manylinux_2_(\d{1,2})_(x86_64|aarch64)")
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""The older name of a platform, by the number of the glibc."""
_DOCKER_SECONDS = 10.0


@dataclass(frozen=True)
class ImagePython:
    """What wheels must fit."""

    what: str
    """Whose Python this is, for messages."""
    version: str
    """Such as `3.11`."""
    platforms: tuple[str, ...]
    """Tags of the platforms whose wheels run there; the best one first."""
    packages: Mapping[str, str] | None
    """The version of each package, by the normalized name; None: not known."""


def python_of(image: str, version: str | None = None, platform: str | None = None) -> ImagePython:
    """Return what is known of an image.

    version, platform: options of the user, which are not looked up. Raises Unusable for options that can't be used,
    and for an image whose Python is not known.
    """
    if version is not None and not re.fullmatch(r"3\.\d{1,2}", version):
        raise Unusable(f"--python must be a version such as 3.11, got {version}")
    own = _own_packages(image)
    labels = {} if own else _labels(image)
    packages = own or _listed(labels.get(LABEL_PACKAGES))
    found = version or ("3.11" if own else labels.get(LABEL_PYTHON))
    if not found:
        raise Unusable(
            f"dtj does not know which Python the image {image} has", "give its version, as in --python 3.11"
        )
    return ImagePython(f"the image {image}", found, _platforms(platform or PLATFORM), packages)


def python_here() -> ImagePython:
    """Return the Python of this process, whose packages programs of `dtj run` have."""
    # A damaged installation may have no name.
    named = ((each.name, each.version) for each in importlib.metadata.distributions())
    found: dict[str, str] = {canonicalize_name(name): version for name, version in named if name}
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return ImagePython("this machine's Python", version, tuple(tags.platform_tags()), found)


@cache
def known_packages() -> dict[str, dict[str, str]]:
    """Return the packages of dtj's own images of this release, except dtj's own, by the image's name."""
    content: dict[str, dict[str, str]] = json.loads(
        (files("dtj.client") / "image_packages.json").read_text(encoding="utf-8")
    )
    return content


def _own_packages(image: str) -> Mapping[str, str] | None:
    """Return the packages of one of dtj's images of this release, in whatever registry it is; None for others."""
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    release = tag == dtj.__version__ or tag.startswith(f"{dtj.__version__}-")
    found = known_packages().get(name) if release else None
    return {**found, "dtjob": dtj.__version__} if found else None


def _labels(image: str) -> Mapping[str, str]:
    """Return the labels of an image that Docker has on this machine; none otherwise."""
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
