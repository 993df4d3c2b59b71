"""The bill of materials of an image: the packages in its uppermost layers."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).parents[3]
SITE = "opt/venv/lib/python3.11/site-packages"
STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u9

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def packed(files: dict[str, str]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return whole.getvalue()


def distribution(name: str, version: str) -> dict[str, str]:
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nWhat it is.\n"
    return {f"{SITE}/{name}-{version}.dist-info/METADATA": text}


LAYERS = [
    {"var/lib/dpkg/status": STATUS},
    distribution("Typing_Extensions", "4.0") | distribution("pip", "23.0"),
    {f"{SITE}/.wh.pip-23.0.dist-info": ""}
    | distribution("dtj", "0.1.0")
    | {f"{SITE}/setuptools/_vendor/wheel-1.dist-info/METADATA": "Name: wheel\nVersion: 1\n"},
]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "image.tar"
    entry = {
        "Config": "config.json",
        "RepoTags": ["dtj-operator:0.1.0"],
        "Layers": ["0.tar", "1.tar", "2.tar"],
    }
    files = {
        "manifest.json": json.dumps([entry]),
        "config.json": json.dumps({"created": "2026-11-21T12:00:00Z"}),
    }
    with tarfile.open(path, "w") as whole:
        for name, content in [
            *((name, text.encode()) for name, text in files.items()),
            *((f"{number}.tar", packed(layer)) for number, layer in enumerate(LAYERS)),
        ]:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            whole.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def sbom(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docker"))
    monkeypatch.delitem(sys.modules, "sbom", raising=False)
    return __import__("sbom")


def test_it_names_what_the_layers_leave_installed(sbom: Any, archive: Path) -> None:
    made = json.loads(sbom.bill(archive, "dtj-operator:0.1.0"))

    assert sorted(component["purl"] for component in made["components"]) == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u9?arch=amd64",
        "pkg:pypi/dtj@0.1.0",
        "pkg:pypi/typing-extensions@4.0",
    ]
    about = made["metadata"]["component"]
    assert (about["type"], about["name"], about["version"]) == ("container", "dtj-operator", "0.1.0")


def test_it_is_cyclonedx(sbom: Any, archive: Path) -> None:
    text = sbom.bill(archive, "dtj-operator:0.1.0")
    validator = JsonStrictValidator(SchemaVersion.V1_6)

    assert validator.validate_str(text) is None
    broken = json.loads(text)
    broken["components"][0]["type"] = "thing"
    assert validator.validate_str(json.dumps(broken)) is not None


def test_the_same_image_has_the_same_bill(sbom: Any, archive: Path) -> None:
    assert sbom.bill(archive, "dtj-operator:0.1.0") == sbom.bill(archive, "dtj-operator:0.1.0")


def test_another_image_is_not_in_the_archive(sbom: Any, archive: Path) -> None:
    assert sbom.tags(archive) == ["dtj-operator:0.1.0"]
    with pytest.raises(KeyError, match=r"dtj-other:1 is not in image\.tar"):
        sbom.bill(archive, "dtj-other:1")
