#!/usr/bin/env python3
"""Write the packages of dtj's images to a file that the client has: `dtj submit` sends no package that the image has.

The images have the same list as a label, which images that are made from them inherit.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from base import IMAGE
from host import REPOSITORY, version

FILE = REPOSITORY / "operator/dtj/client/image_packages.json"
PYTHON = "3.11"
"""Of the usual base image, Debian 12."""


def packages_in(wheels: list[Path], *, horovod: bool) -> dict[str, str]:
    """Return the version of each package of an image, except dtj's own. horovod: whether Horovod is installed."""
    pairs = [wheel.name.split("-")[:2] for wheel in wheels]
    found = {re.sub(r"[-_.]+", "-", name).lower(): of for name, of in pairs}
    if not horovod:
        found.pop("horovod", None)
    return dict(sorted(found.items()))


def package_labels(tag: str, wheels: list[Path], args: dict[str, str]) -> dict[str, str]:
    """Return the labels by which clients know Python and packages; none where the index of packages decides."""
    if "-trainer-" not in tag or args["BASE_IMAGE"] != IMAGE or args.get("PACKAGES_FROM") == "index":
        return {}
    found = {"dtjob": version(), **packages_in(wheels, horovod="horovod" in tag)}
    listed = " ".join(f"{name}=={of}" for name, of in found.items())
    return {"dtj.dev/python": PYTHON, "dtj.dev/packages": listed}


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
