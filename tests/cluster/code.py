"""Code of cluster tests, in ConfigMaps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dtj.client import code_folder
from dtj_trainer import contract
from tests.cluster.jobs import Manifest, Namespace


def stored_code(namespace: Namespace, name: str, files: Mapping[str, str], folder: Path) -> Manifest:
    """Make a ConfigMap of these files; return the fields of `spec.code` that name it. folder: for the archive."""
    source, archive = folder / name, folder / contract.CODE_FILE
    for path, text in files.items():
        file = source / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with archive.open("wb") as opened:
        packed = code_folder.pack(code_folder.select(source), opened)
    namespace.kubectl("create", "configmap", name, f"--from-file={archive}")
    return {"configMap": name, "digest": packed.digest}
