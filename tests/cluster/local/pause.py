"""The image of the pod sandbox, built from one small C file instead of pulled from a registry."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

from tests.cluster.local.paths import CACHE, built_once
from tests.cluster.shell import run

SOURCE = Path(__file__).with_name("pause.c")
NAME = "dtj.local/pause"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def tag() -> str:
    """The image's name, with a tag that changes with what it is made from."""
    made_from = SOURCE.read_bytes() + Path(__file__).read_bytes()
    return f"{NAME}:{hashlib.sha256(made_from).hexdigest()[:12]}"


def archive() -> Path:
    """The image in the form that `docker save` writes."""
    target = CACHE / "pause" / tag().rpartition(":")[2]
    with built_once(target) as folder:
        if folder is not None:
            run("gcc", "-static", "-Os", "-s", "-o", folder / "pause", SOURCE)
            _write(folder / "image.tar", (folder / "pause").read_bytes())
    return target / "image.tar"


def _write(path: Path, program: bytes) -> None:
    layer = _tar({"pause": program}, mode=0o755)
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    text = json.dumps(config).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag()], "Layers": ["layer.tar"]}]
    files = {"layer.tar": layer, name: text, "manifest.json": json.dumps(manifest).encode()}
    path.write_bytes(_tar(files))


def _tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
