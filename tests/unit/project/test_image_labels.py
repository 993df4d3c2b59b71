"""The labels of the images, and the options that pass the labels to the engine."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PREFIX = "org.opencontainers.image."


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docker"))
    for name in ("build", "engine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("build")


def test_every_image_has_title_version_and_licence(build: Any) -> None:
    every = [tag for image in build.images(build.IMAGE, {}) for tag in image.tags]
    assert len(every) >= 6
    for tag in every:
        labels = build.labels(tag, build.IMAGE, {})
        assert labels[f"{PREFIX}version"] == tag.partition(":")[2]
        assert labels[f"{PREFIX}licenses"] == "Apache-2.0"
        assert labels[f"{PREFIX}base.name"] == "debian:bookworm-slim"
        assert labels[f"{PREFIX}title"]
        assert f"{PREFIX}revision" not in labels, "of a working tree it would not be true"


def test_a_release_names_its_commit_and_its_repository(build: Any) -> None:
    origin = {"revision": "0" * 40, "source": "https://example.com/dtj"}
    labels = build.labels("dtj-operator:0.1.0", "debian@sha256:0", origin)
    assert origin.items() <= {name.removeprefix(PREFIX): value for name, value in labels.items()}.items()


def test_the_engine_is_told_the_labels(build: Any, tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/words\n')
    docker.chmod(0o755)
    engine = importlib.import_module("engine").Engine(str(docker), None)

    engine.build(
        tmp_path, tmp_path / "Dockerfile", "operator", "dtj-operator:1", {}, {"a.title": "dtj's own"}
    )

    words = (tmp_path / "words").read_text().splitlines()
    assert words[words.index("--label") + 1] == "a.title=dtj's own"
    assert words[-1] == str(tmp_path)
