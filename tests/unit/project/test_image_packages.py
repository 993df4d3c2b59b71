"""What the client says that dtj's images have is what the images install."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dtj.client.image_python import LABEL_PACKAGES, LABEL_PYTHON, known_packages, python_here

ROOT = Path(__file__).parents[3]


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docker"))
    return importlib.import_module


def test_the_packages_are_those_of_the_images(docker: Any) -> None:
    """A change of a pinned version needs `make image-packages`."""
    build, pins = docker("build"), docker("host").pins()
    of_dtj = {"horovod": docker("wheels").HOROVOD_VERSION}
    named = set()
    for image in build.images(build.IMAGE, {}):
        for name in {tag.partition(":")[0] for tag in image.tags if "-trainer-" in tag}:
            named.add(name)
            found = known_packages()[name]
            assert ("horovod" in found) == ("horovod" in name)
            for package, version in found.items():
                assert version.partition("+")[0] == {**pins, **of_dtj}[package], (name, package)
            asked = [line for lines in (*image.requirements.values(), image.alone) for line in lines]
            names = {re.split(r"[\[=<> ]", line)[0].lower().replace("_", "-") for line in asked}
            assert names <= set(found), "make image-packages"
    assert named == set(known_packages())


def test_images_with_dtj_trainer_have_the_labels(docker: Any) -> None:
    labels = docker("image_packages").package_labels
    args = {"BASE_IMAGE": docker("base").IMAGE}
    wheels = [Path(name) for name in ("torch-2.13.0+cpu-cp311-x.whl", "horovod-0.28.1-cp311-x.whl")]
    assert labels("dtj-trainer-horovod:0.1.0", wheels, args) == {
        LABEL_PYTHON: "3.11",
        LABEL_PACKAGES: "dtjob==0.1.0 horovod==0.28.1 torch==2.13.0+cpu",
    }
    assert "horovod==" not in labels("dtj-trainer-tensorflow:0.1.0", wheels, args)[LABEL_PACKAGES]
    # The list does not tell of an image with other packages, or without dtj_trainer.
    assert labels("dtj-horovod-base:0.1.0", wheels, args) == {}
    assert labels("dtj-trainer-horovod:0.1.0", wheels, {**args, "PACKAGES_FROM": "index"}) == {}
    assert labels("dtj-trainer-horovod:0.1.0", wheels, {"BASE_IMAGE": "nvidia/cuda"}) == {}


def test_an_image_with_other_packages_is_asked_for_them(docker: Any, tmp_path: Path) -> None:
    """The engine of this test runs what it is given by the Python of this machine."""
    script = tmp_path / "docker"
    script.write_text(f'#!/bin/sh\necho "WARNING: a word of Docker"\nshift 5\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    found = docker("image_packages").labels_of(docker("engine").Engine(str(script), None), "own:1")
    here = python_here()
    assert found[LABEL_PYTHON] == here.version
    assert dict(each.split("==") for each in found[LABEL_PACKAGES].split()) == here.packages
