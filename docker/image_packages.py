#!/usr/bin/env python3
"""Write the packages of dtj's images to a file that the client has: `dtj submit` sends no package that the image has.

The images have the same list as a label, which images that are made from them inherit.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from base import IMAGE
from engine import Engine
from host import REPOSITORY, version

FILE = REPOSITORY / "operator/dtj/client/image_packages.json"
PYTHON = "3.11"
"""Of the usual base image, Debian 12."""


def packages_in(wheels: list[Path], *, horovod: bool) -> dict[str, str]:
    """Return the version of each package of an image, except dtj's own. horovod: whether Horovod is installed."""
    pairs = [wheel.name.split("-")[:2] for wheel in wheels]
    found = {_normalized(name): of for name, of in pairs}
    if not horovod:
        found.pop("horovod", None)
    return dict(sorted(found.items()))


LISTING = """
import sys
from importlib.metadata import distributions
listed = [f"{each.name}=={each.version}" for each in distributions()]
print(f"{sys.version_info.major}.{sys.version_info.minor}", *listed)
"""
"""A program that prints the version of Python and each package, in one line."""


def has_labels(tag: str) -> bool:
    """Return whether an image has the labels of packages: jobs with packages need dtj_trainer."""
    return "-trainer-" in tag


def package_labels(tag: str, wheels: list[Path], args: dict[str, str]) -> dict[str, str]:
    """Return the labels by which clients know Python and packages; none where base or index of packages decide."""
    if not has_labels(tag) or args["BASE_IMAGE"] != IMAGE or args.get("PACKAGES_FROM") == "index":
        return {}
    return _labels(PYTHON, {"dtjob": version(), **packages_in(wheels, horovod="horovod" in tag)})


def labels_of(docker: Engine, tag: str) -> dict[str, str]:
    """Return the labels of a built image, as its own Python tells them. Raises BuildError."""
    printed = docker.run("run", "--rm", "--network=none", "--entrypoint=python", tag, "-c", LISTING)
    python, *listed = printed.splitlines()[-1].split()  # Docker may print warnings before.
    pairs = (each.partition("==") for each in listed)
    return _labels(python, {_normalized(name): of for name, _, of in pairs})


def _labels(python: str, packages: dict[str, str]) -> dict[str, str]:
    listed = " ".join(f"{name}=={of}" for name, of in sorted(packages.items()))
    return {"dtj.dev/python": python, "dtj.dev/packages": listed}


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Write FILE. Wheels that are not in the cache are downloaded or built."""
    from build import images

    listed = {}
    for image in images(IMAGE, {}):
        for tag in image.tags:
            name = tag.partition(":")[0]
            if "-trainer-" in name:
                listed[name] = packages_in(image.wheels(), horovod="horovod" in name)
    FILE.write_text(json.dumps(dict(sorted(listed.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
