"""`python -m tests.gpu.kit` collects in build/gpu-kit what a bare machine with a GPU lacks for `tests/gpu/run.py`.

The machine has Python 3.12 and PyTorch, and no package index. Everything that is imported at the top is of the
standard library: `run.py` unpacks the kit before it has any package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
KIT = REPOSITORY / "build" / "gpu-kit"
LIMIT = 62 * 2**20
"""Bytes of the kit and the working tree together."""
PYTHON = "3.12"
_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
PACKAGES = (  # By their normalised names.
    # dtj's commands
    *("boto3", "botocore", "s3transfer", "jmespath", "python-dateutil", "six", "urllib3"),
    *("pydantic", "pydantic-core", "annotated-types", "typing-inspection", "typing-extensions"),
    *("rich", "markdown-it-py", "mdurl", "pygments", "typer", "click", "shellingham", "annotated-doc"),
    *("kubernetes", "prometheus-client", "aiohttp", "aiohappyeyeballs", "aiosignal", "attrs", "frozenlist"),
    *("multidict", "propcache", "yarl"),
    # dtj-launch and the programs
    *("google-crc32c", "isal", "protobuf", "psutil", "py-spy", "simplejpeg"),
    # the export
    *("onnxscript", "onnx-ir"),
    # the S3 server
    *("moto", "flask", "flask-cors", "werkzeug", "jinja2", "markupsafe", "itsdangerous", "blinker"),
    *("cryptography", "cffi", "pycparser", "requests", "certifi", "charset-normalizer", "idna", "responses"),
    *("xmltodict", "py-partiql-parser"),
)
_OF_MOTO = (
    *("core", "moto_server", "moto_api", "packages", "templates", "utilities"),
    *("s3", "s3bucket_path", "sts", "iam", "cloudwatch", "events"),
)
_OF_BOTOCORE = ("s3", "sts", "endpoints", "partitions", "sdk-default", "_retry")
_LEFT_OUT = {
    "botocore": re.compile(rf"botocore/data/(?!({'|'.join(_OF_BOTOCORE)})\b|[^/]+$)"),
    "moto": re.compile(rf"moto/(?!({'|'.join(_OF_MOTO)})\b)[^/]+/"),
    "kubernetes": re.compile(r"kubernetes/(?!aio\b|__init__)[^/]+"),
}
"""What is left out of a wheel: other services, and the clients of another kind."""
_METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def build() -> int:
    """Collect the kit; return its bytes. Raises CalledProcessError where a package can't be had."""
    from tests import advisories, fashion_mnist

    shutil.rmtree(KIT, ignore_errors=True)
    wheels, data = KIT / "wheels", KIT / "fashion-mnist"
    wheels.mkdir(parents=True)
    data.mkdir()
    platforms = [word for name in _PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    target = ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}", *platforms]
    pins = advisories.pins_of((REPOSITORY / "constraints.txt").read_text())
    wanted = [f"{name}=={pins[name]}" for name in PACKAGES]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *target, "--dest", str(wheels)]
    subprocess.run([*pip, *wanted], check=True)
    for wheel in wheels.glob("*.whl"):
        _cut(wheel)
    for name in fashion_mnist.FILES:
        shutil.copy(fashion_mnist.folder() / name, data)
    return sum(path.stat().st_size for path in KIT.rglob("*") if path.is_file())


def tree() -> int:
    """Return the bytes of the working tree: what git has, and what it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True).stdout.split(b"\0")
    return sum((REPOSITORY / os.fsdecode(name)).stat().st_size for name in names if name)


def environment(kit: Path, folder: Path) -> dict[str, str]:
    """Unpack a kit into a folder; return the variables with which Python and the shell find it, and dtj."""
    site, programs = folder / "site", folder / "bin"
    programs.mkdir(parents=True)
    for wheel in sorted((kit / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        for scripts in site.glob("*.data/scripts"):  # py-spy is a program.
            for script in scripts.iterdir():
                shutil.move(script, programs / script.name)
                (programs / script.name).chmod(0o755)
    project = (REPOSITORY / "pyproject.toml").read_text()
    name, version = (re.search(rf'^{key} = "(.*)"', project, re.MULTILINE) for key in ("name", "version"))
    assert name is not None
    assert version is not None
    metadata = site / f"{name[1]}-{version[1]}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(_METADATA.format(name=name[1], version=version[1]))
    for script, target in re.findall(r'^(dtj|dtj-launch) = "(.*)"', project, re.MULTILINE):
        module, function = target.split(":")
        (programs / script).write_text(
            f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        )
        (programs / script).chmod(0o755)
    sources = [str(REPOSITORY / part) for part in ("operator", "trainer", ".")]
    return {
        "PYTHONPATH": os.pathsep.join([*sources, str(site)]),
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
    }


def _cut(wheel: Path) -> None:
    """Leave out of a wheel what the check does not use, and compress the rest better."""
    left_out = _LEFT_OUT.get(wheel.name.split("-")[0])
    smaller = wheel.with_suffix(".cut")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(smaller, "w", zipfile.ZIP_LZMA) as rest:
        for item in whole.infolist():
            if left_out is None or not left_out.match(item.filename):
                rest.writestr(item, whole.read(item), compress_type=zipfile.ZIP_LZMA)
    smaller.replace(wheel)


def main() -> int:
    """Build the kit and print the sum; 1 where it is too large."""
    kit, working_tree = build(), tree()
    together = kit + working_tree
    of = " + ".join(f"{size / 2**20:.1f}" for size in (kit, working_tree))
    print(f"{KIT}: kit and working tree have {of} = {together / 2**20:.1f} MiB of {LIMIT / 2**20:.0f}")
    return int(together > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
