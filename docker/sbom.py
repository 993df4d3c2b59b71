#!/usr/bin/env python3
"""Write the contents of images as CycloneDX 1.6: the Python distributions and Debian packages of each archive of
`docker save`, with their licences. The command needs no engine. The same archive gives the same file.

The exit code is 1 if the licence of a package is not known.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from email.parser import BytesHeaderParser, HeaderParser
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from cyclonedx.contrib.license.exceptions import InvalidSpdxLicenseException
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

import licences

STATUS = "var/lib/dpkg/status"
DOCS = PurePosixPath("usr/share/doc")
COPYRIGHT = "copyright"
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


def bill(archive: Path, tag: str) -> str:
    """Return the bill of materials of one image of an archive, as JSON. Raises KeyError for a missing tag."""
    with tarfile.open(archive) as image:
        entry = next(
            (each for each in _json(image, "manifest.json") if tag in (each["RepoTags"] or [])), None
        )
        if entry is None:
            raise KeyError(f"{tag} is not in {archive.name}")
        config = _json(image, entry["Config"])
        metadata = _metadata(image, entry["Layers"])
    name, _, version = tag.rpartition(":")
    purl = PackageURL("oci", name=name.rpartition("/")[2], qualifiers={"tag": version})
    whole = Component(type=ComponentType.CONTAINER, name=name, version=version, purl=purl, bom_ref=str(purl))
    parts = list(_components(metadata))
    bom = Bom(serial_number=uuid5(NAMESPACE_OID, entry["Config"]), components=parts)
    bom.metadata.timestamp = datetime.fromisoformat(config["created"]).astimezone(UTC)
    bom.metadata.component = whole
    bom.register_dependency(whole, parts)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def tags(archive: Path) -> list[str]:
    """List the images of an archive."""
    with tarfile.open(archive) as image:
        return [tag for entry in _json(image, "manifest.json") for tag in entry["RepoTags"] or []]


def _metadata(image: tarfile.TarFile, layers: list[str]) -> dict[str, bytes]:
    """Return, by path, the files that describe installed packages, as in the uppermost layer.

    Of a link in the place of a folder with a package's documents, the content is the folder's name that it leads to.
    """
    found: dict[str, bytes] = {}
    for layer in layers:
        content = image.extractfile(layer)
        assert content is not None
        added: dict[str, bytes] = {}
        with tarfile.open(fileobj=content) as files:
            for file in files:
                path = PurePosixPath(file.name)
                if path.name == _OPAQUE:
                    _forget(found, path.parent)
                elif path.name.startswith(_WHITEOUT):
                    _forget(found, path.with_name(path.name.removeprefix(_WHITEOUT)))
                elif file.issym() and path.parent == DOCS:
                    added[str(path)] = file.linkname.encode()
                elif file.isfile() and _describes_packages(path):
                    data = files.extractfile(file)
                    assert data is not None
                    added[str(path)] = data.read()
        found |= added
    return found


def _forget(found: dict[str, bytes], removed: PurePosixPath) -> None:
    for path in [path for path in found if PurePosixPath(path).is_relative_to(removed)]:
        del found[path]


def _describes_packages(path: PurePosixPath) -> bool:
    distribution = path.name == "METADATA" and path.parent.name.endswith(".dist-info")
    vendored = "_vendor" in path.parts  # A vendored package belongs to the distribution that contains it.
    licence = path.name == COPYRIGHT and path.parent.parent == DOCS
    return (distribution and not vendored) or licence or str(path) == STATUS


def _components(metadata: dict[str, bytes]) -> Iterator[Component]:
    for path, content in metadata.items():
        if path == STATUS:
            yield from _debian(content.decode(), metadata)
        elif not PurePosixPath(path).is_relative_to(DOCS):
            fields = BytesHeaderParser().parsebytes(content)
            name, version = fields["Name"], fields["Version"]
            # https://packaging.python.org/en/latest/specifications/name-normalization/
            purl = PackageURL("pypi", name=name.lower().replace("_", "-").replace(".", "-"), version=version)
            licensed = _licences(licences.of_distribution(fields))
            yield _component(purl, name, f"{purl}#{path}", licensed)


def _debian(status: str, metadata: dict[str, bytes]) -> Iterator[Component]:
    for stanza in status.strip().split("\n\n"):
        fields = HeaderParser().parsestr(stanza)
        if not fields["Status"].endswith(" installed"):
            continue
        name, version = fields["Package"], fields["Version"]
        purl = PackageURL("deb", "debian", name, version, {"arch": fields["Architecture"]})
        said = licences.of_debian(name, _copyright(name, metadata))
        yield _component(purl, name, str(purl), _licences(said))


def _copyright(package: str, metadata: dict[str, bytes]) -> str:
    """Return a Debian package's file `copyright`. Its folder may be a link to another package's."""
    linked = metadata.get(str(DOCS / package), package.encode()).decode()
    return metadata.get(str(DOCS / linked / COPYRIGHT), b"").decode(errors="replace")


def _component(purl: PackageURL, name: str, ref: str, licensed: Iterable[License]) -> Component:
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=purl.version,
        purl=purl,
        bom_ref=ref,
        licenses=licensed,
    )


def _licences(said: Sequence[str]) -> list[License]:
    """Return what packages say in the form of CycloneDX: identifiers or an expression of SPDX, or names."""
    make = LicenseFactory()
    if len(said) == 1:
        return [make.make_from_string(said[0])]
    found: list[License] = []
    for each in said:
        try:
            found.append(make.make_with_id(each))
        except InvalidSpdxLicenseException:
            found.append(make.make_with_name(each))
    return found


def without_licence(text: str) -> list[str]:
    """Name the packages of a bill of materials whose licences are not known."""
    return [each["purl"] for each in json.loads(text).get("components", ()) if not each.get("licenses")]


def _json(image: tarfile.TarFile, name: str) -> Any:
    content = image.extractfile(name)
    assert content is not None
    return json.load(content)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where NAME.cdx.json go")
    parser.add_argument(
        "--archives", type=Path, required=True, help="a file with their paths, as docker/build.py prints them"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    unknown = set[str]()
    for archive in map(Path, arguments.archives.read_text().split()):
        for tag in tags(archive):
            name, _, version = tag.rpartition("/")[2].rpartition(":")
            file = arguments.folder / f"{'-'.join([name, *version.split('-')[1:]])}.cdx.json"
            text = bill(archive, tag)
            file.write_text(text)
            print(file)
            unknown.update(without_licence(text))
    if unknown:
        sys.exit(
            f"no licence is known of {', '.join(sorted(unknown))}: look it up, and add it to docker/licences.py"
        )


if __name__ == "__main__":
    main()
