"""The bill of materials of an image: the packages in its uppermost layers, and their licences."""

from __future__ import annotations

import importlib
import io
import json
import sys
import tarfile
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
GCC = """Package: libgcc-s1
Status: install ok installed
Architecture: amd64
Version: 12
"""


def strict_validator() -> Any:
    """CycloneDX's own. Its import takes seconds: not for who runs another test."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6)


def packed(files: dict[str, str], links: dict[str, str]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return whole.getvalue()


def distribution(name: str, version: str, licence: str = "License: MIT") -> dict[str, str]:
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{licence}\n\nWhat it is.\n"
    return {f"{SITE}/{name}-{version}.dist-info/METADATA": text}


LAYERS = [
    {"var/lib/dpkg/status": f"{STATUS}\n{GCC}"}
    | {"usr/share/doc/libc6/copyright": "It is in /usr/share/common-licenses/LGPL-2.1."}
    | {
        "usr/share/doc/gcc-12-base/copyright": "Files: *\nLicense: GPL-3+\n\nFiles: a\nLicense: GPL-3+ or MIT\n"
    },
    distribution("Typing_Extensions", "4.0") | distribution("pip", "23.0"),
    {f"{SITE}/.wh.pip-23.0.dist-info": ""}
    | distribution("dtj", "0.1.0")
    | {f"{SITE}/setuptools/_vendor/wheel-1.dist-info/METADATA": "Name: wheel\nVersion: 1\n"},
]


LINKS = {"usr/share/doc/libgcc-s1": "gcc-12-base"}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return written(tmp_path / "image.tar", LAYERS)


def written(path: Path, layers: list[dict[str, str]]) -> Path:
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
            *((f"{number}.tar", packed(layer, LINKS)) for number, layer in enumerate(layers)),
        ]:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            whole.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def sbom(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docker"))
    for name in ("sbom", "licences"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__("sbom")


def test_it_names_what_the_layers_leave_installed(sbom: Any, archive: Path) -> None:
    made = json.loads(sbom.bill(archive, "dtj-operator:0.1.0"))

    assert sorted(component["purl"] for component in made["components"]) == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u9?arch=amd64",
        "pkg:deb/debian/libgcc-s1@12?arch=amd64",
        "pkg:pypi/dtj@0.1.0",
        "pkg:pypi/typing-extensions@4.0",
    ]
    about = made["metadata"]["component"]
    assert (about["type"], about["name"], about["version"]) == ("container", "dtj-operator", "0.1.0")


def test_it_is_cyclonedx(sbom: Any, archive: Path) -> None:
    text = sbom.bill(archive, "dtj-operator:0.1.0")
    validator = strict_validator()

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


# --- licences ------------------------------------------------------------------------------------


def licensed(text: str) -> dict[str, list[str]]:
    """The licences by the package's name."""
    return {
        each["name"]: [
            found.get("expression") or found["license"].get("id") or found["license"]["name"]
            for found in each.get("licenses", ())
        ]
        for each in json.loads(text)["components"]
    }


def test_packages_have_the_licences_that_they_say(sbom: Any, archive: Path) -> None:
    text = sbom.bill(archive, "dtj-operator:0.1.0")
    assert sbom.without_licence(text) == []
    assert licensed(text) == {
        "Typing_Extensions": ["MIT"],
        "dtj": ["MIT"],
        "libc6": ["LGPL-2.1"],
        "libgcc-s1": ["GPL-3+", "GPL-3+ or MIT"],
    }


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("License-Expression: Apache-2.0 AND MIT\nLicense: MIT", ["Apache-2.0 AND MIT"]),
        ("License: Apache License 2.0", ["Apache-2.0"]),
        ("License: Copyright 2018 of all authors,\n        whose whole text stands here\n"
         "Classifier: License :: OSI Approved :: MIT License", ["MIT"]),
        ("License: Dual License\nClassifier: License :: OSI Approved :: BSD License\n"
         "Classifier: License :: OSI Approved :: Apache Software License", ["Apache-2.0", "BSD License"]),
        ("License: one that nobody else has", ["one that nobody else has"]),
        ("Summary: a package", []),
    ],
)  # fmt: skip
def test_a_distribution_says_its_licence_in_three_ways(
    sbom: Any, tmp_path: Path, lines: str, found: list[str]
) -> None:
    image = written(tmp_path / "image.tar", [distribution("some", "1", lines), {}, {}])
    text = sbom.bill(image, "dtj-operator:0.1.0")
    assert licensed(text) == {"some": found}
    assert strict_validator().validate_str(text) is None


def test_the_command_fails_and_names_the_packages_without_a_known_licence(
    sbom: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [distribution("some", "1", "Summary: a package"), {"var/lib/dpkg/status": GCC}, {}]
    (tmp_path / "archives.txt").write_text(f"{written(tmp_path / 'image.tar', parts)}\n")
    words = ["sbom.py", f"--folder={tmp_path}/made", f"--archives={tmp_path}/archives.txt"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        sbom.main()
    assert "no licence is known of pkg:deb/debian/libgcc-s1@12?arch=amd64, pkg:pypi/some@1:" in str(
        ended.value
    )
    assert (tmp_path / "made/dtj-operator.cdx.json").exists()


def needed(build: Any) -> list[str]:
    """The Python packages of all images, and what these need, as far as this environment has them."""
    names = {
        Requirement(line).name for image in build.images(build.IMAGE, {}) for lines in image.requirements.values()
        for line in [*lines, *image.alone]
    }  # fmt: skip
    found: dict[str, metadata.Distribution] = {}
    waiting = sorted(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        with suppress(metadata.PackageNotFoundError):
            if name not in found:
                found[name] = metadata.distribution(name)
                needs = map(Requirement, found[name].requires or ())
                waiting += [
                    each.name for each in needs if not each.marker or each.marker.evaluate({"extra": ""})
                ]
    return sorted(found)


def test_every_package_of_the_images_has_a_known_licence(sbom: Any) -> None:
    """Before an image is built, of the packages that are installed here too: in `make test`, all of them."""
    build = importlib.import_module("build")
    licences = importlib.import_module("licences")
    names = needed(build)
    of_frameworks = {"namex"} if find_spec("tensorflow") else set()
    assert {"onnxruntime", "uvloop", "tf2onnx", "mlflow-skinny", "kopf"} | of_frameworks <= {*names}
    unknown = [name for name in names if not licences.of_distribution(metadata.metadata(name))]
    assert unknown == [], "look it up, and add it to docker/licences.py"
