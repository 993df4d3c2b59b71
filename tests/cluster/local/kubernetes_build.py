"""The build of Kubernetes' five programs from Debian's source, because no package registry has the programs."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.local import packages
from tests.cluster.local.paths import CACHE, built_once
from tests.cluster.local.processes import LESS_GC
from tests.cluster.progress import ClusterError, step
from tests.cluster.shell import failure, run

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = "v1.20.2"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
GO = "1.19"
# reflect2 as vendored breaks under Go >= 1.18: the server dies of a SIGSEGV on the first custom resource
# that is watched. Debian packages the release that does not.
REFLECT2 = "golang-github-modern-go-reflect2-dev"
TREE = "src/k8s.io/kubernetes"
OPENAPI = "k8s.io/kubernetes/pkg/generated/openapi"


def key() -> str:
    """Changes whenever what the programs are made from, or how, does."""
    steps = (_build, _environment, _replace_reflect2, _generate_openapi, _compile)
    made_from = [VERSION, *PROGRAMS, GO, REFLECT2, *(inspect.getsource(step) for step in steps)]
    return hashlib.sha256("\0".join(made_from).encode()).hexdigest()[:12]


def binaries() -> Path:
    """The folder of the programs: that of DTJ_TEST_KUBERNETES, or the built ones, which are built once.

    Raises ClusterError where a program is missing.
    """
    if given := os.environ.get("DTJ_TEST_KUBERNETES"):
        missing = [name for name in PROGRAMS if not os.access(Path(given) / name, os.X_OK)]
        if missing:
            raise ClusterError(f"DTJ_TEST_KUBERNETES={given} has no program {', '.join(missing)}")
        return Path(given)
    target = CACHE / "kubernetes" / key()
    with built_once(target) as folder:
        if folder is not None:
            with step(f"building Kubernetes {VERSION} from Debian's source (once; some minutes)") as say:
                _build(folder, say)
    return target


@cache
def minor(binaries: Path) -> int:
    """The minor version of the programs in a folder, such as 20 for v1.20.2. Flags and fields depend on it."""
    said = run(binaries / "kube-apiserver", "--version")
    found = re.search(r"v1\.(\d+)\.", said)
    if found is None:
        raise ClusterError(
            f"{binaries / 'kube-apiserver'} --version says {said.strip()!r}, not Kubernetes v1.N.P"
        )
    return int(found[1])


def _build(folder: Path, say: Callable[[str], None]) -> None:
    work = folder / "work"
    work.mkdir()
    say("fetching the source and Go")
    source = packages.unpack_source(work, "kubernetes")
    for deb in packages.download(work, f"golang-{GO}-go", f"golang-{GO}-src", REFLECT2):
        run("dpkg-deb", "--extract", deb, work / "root")
    gopath = work / "gopath"
    tree = gopath / TREE
    tree.parent.mkdir(parents=True)
    source.rename(tree)
    _replace_reflect2(tree, work / "root")
    env = _environment(work, gopath)
    say("generating the OpenAPI definitions")
    _generate_openapi(tree, env)
    _compile(tree, env, say)
    for program in PROGRAMS:
        shutil.move(gopath / "bin" / program, folder / program)
    go = run(work / "root/usr/lib" / f"go-{GO}" / "bin/go", "version", env=env).strip()
    (folder / "versions").write_text(f"kubernetes {VERSION}, {source.name}\n{go}\n")
    shutil.rmtree(work)


def _environment(work: Path, gopath: Path) -> dict[str, str]:
    root = work / "root/usr/lib" / f"go-{GO}"
    return {
        "PATH": f"{root / 'bin'}:{gopath / 'bin'}:{os.environ['PATH']}",
        "HOME": str(work),
        "GOROOT": str(root),
        "GOPATH": str(gopath),
        "GOCACHE": str(work / "gocache"),
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "CGO_ENABLED": "0",
        **LESS_GC,
    }


def _replace_reflect2(tree: Path, root: Path) -> None:
    vendored = tree / "vendor/github.com/modern-go/reflect2"
    shutil.rmtree(vendored)
    shutil.copytree(root / "usr/share/gocode/src/github.com/modern-go/reflect2", vendored)


def _generate_openapi(tree: Path, env: dict[str, str]) -> None:
    run("go", "install", "./vendor/k8s.io/kube-openapi/cmd/openapi-gen", cwd=tree, env=env)
    marked = run(
        "grep", "--recursive", "--dereference-recursive", "--files-with-matches", "--include=*.go",
        "+k8s:openapi-gen=true", "vendor/k8s.io", "pkg", "cmd", cwd=tree,
    )  # fmt: skip
    folders = {os.path.dirname(line) for line in marked.splitlines()}  # noqa: PTH120 text, not a path here
    inputs = sorted(
        folder.removeprefix("vendor/") if folder.startswith("vendor/") else f"k8s.io/kubernetes/{folder}"
        for folder in folders
        if "/code-generator/" not in folder and "/testdata" not in folder
    )
    run(
        "openapi-gen", "--output-file-base", "zz_generated.openapi", "--output-package", OPENAPI,
        "--go-header-file", "hack/boilerplate/boilerplate.generatego.txt",
        "--report-filename", os.devnull, "--input-dirs", ",".join(inputs),
        "--output-base", str(Path(env["GOPATH"]) / "src"), cwd=tree, env=env,
    )  # fmt: skip


def _compile(tree: Path, env: dict[str, str], say: Callable[[str], None]) -> None:
    commands = [f"./cmd/{program}" for program in PROGRAMS]
    total = len(run("go", "list", "-deps", *commands, cwd=tree, env=env).splitlines())
    # In GOPATH mode the variables live under the vendor path; unset, the server calls itself v0.0.0-master,
    # which clients don't parse.
    major, minor = VERSION.removeprefix("v").split(".")[:2]
    values = {"gitVersion": VERSION, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    flags = " ".join(
        f"-X k8s.io/kubernetes/vendor/k8s.io/{where}/version.{name}={value}"
        for where in ("component-base", "client-go/pkg")
        for name, value in values.items()
    )
    # `-s -w` drops the debugging information that the compiler would make. A wildcard does not match `vendor`.
    without = [f"-gcflags=k8s.io/kubernetes/{below}...=-dwarf=false" for below in ("", "vendor/")]
    words = ["go", "install", "-v", *without, "-ldflags", f"-s -w {flags}", *commands]
    compiled = 0
    lines: list[str] = []
    with subprocess.Popen(
        words, cwd=tree, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines = [*lines[-30:], line]
            compiled += 1
            if compiled % 200 == 0:
                say(f"compiled {compiled} of {total} Go packages")
    if process.returncode:
        raise ClusterError(failure(words, process.returncode, "".join(lines)))
