"""Wheels that tests build themselves, and archives of them."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dtj_trainer.contract.code_archive import pack
from dtj_trainer.contract.package_set import FILE, PackageSet


def wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
    tag: str = "py3-none-any",
    files: Mapping[str, str | bytes] | None = None,
) -> Path:
    """Write a wheel of one module, unless `files` are given."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    lines = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {each}" for each in requires),
        *(f"Provides-Extra: {each}" for each in extras),
    ]
    content: dict[str, str | bytes] = {
        **(files if files is not None else {f"{name}.py": f"version = {version!r}\n"}),
        f"{info}/METADATA": "\n".join(lines) + "\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{each},,\n" for each in (*content, f"{info}/RECORD"))
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in {**content, f"{info}/RECORD": record}.items():
            entry = zipfile.ZipInfo(each)
            entry.external_attr = (0o100755 if "/scripts/" in each else 0o100644) << 16
            archive.writestr(entry, text)
    return path


def packed(archive: Path, found: PackageSet, wheels: Sequence[Path]) -> str:
    """Write an archive as `dtj submit` does; return its digest."""
    with tempfile.TemporaryDirectory() as folder:
        (told := Path(folder, FILE)).write_text(found.to_json())
        with archive.open("wb") as file:
            return pack([(FILE, told), *((each.name, each) for each in wheels)], file).digest
