"""The bundle of the page of `dtj ui` is what its sources make, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ui_bundle import BUNDLE, FILES, SOURCES, build


def test_the_committed_bundle_is_built_of_the_sources(tmp_path: Path) -> None:
    built = build(tmp_path)
    assert {path.name for path in BUNDLE.iterdir() if path.suffix not in (".py", "")} == set(FILES)
    for name in FILES:
        assert (BUNDLE / name).read_bytes() == (built / name).read_bytes(), f"{name}: run `make page`"


def test_few_packages_all_locked_and_named_in_the_bundle() -> None:
    package = json.loads((SOURCES / "package.json").read_text())
    lock = json.loads((SOURCES / "package-lock.json").read_text())["packages"]
    assert len(package["dependencies"]) <= 5
    assert all("integrity" in entry for name, entry in lock.items() if name)
    # No host of a registry: npm takes the one that the machine names.
    assert all("resolved" not in entry for entry in lock.values())
    bundle = (BUNDLE / "page.js").read_text()
    assert all(f"/*! {name}\n" in bundle for name in package["dependencies"])
    assert "MIT" in bundle
