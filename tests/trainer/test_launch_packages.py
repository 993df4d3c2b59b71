"""dtj-launch with the archive of `spec.code.packages`: where it is installed, who sees it, and what is refused."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.trainer.conftest import Workspace, until
from tests.wheels import packed, wheel

from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.contract.package_set import PackageSet
from dtj_trainer.launch import code
from dtj_trainer.launch.code import CodeUnavailable, bring_packages
from dtj_trainer.launch.settings import read_settings

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
FITTING = PackageSet(PYTHON, {"numpy": importlib.metadata.version("numpy")})
USE = "import colour, os; print('colour', colour.version, 'from', os.path.realpath(colour.__file__))"

TRY_LOCK = """
import fcntl
with open(os.path.dirname(os.path.realpath(colour.__file__)) + ".lock") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("no pod can remove the set")
"""


def given(archive: Path, digest: str, **more: str) -> dict[str, str]:
    return {"DTJ_PACKAGES_ARCHIVE": str(archive), "DTJ_PACKAGES_DIGEST": digest, **more}


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The variables of a set of two packages, one of which has a command."""
    tool = {"tool.py": "", "tool-1.0.data/scripts/tool": "#!python\nimport tool; print('the tool runs')\n"}
    wheels = [wheel(tmp_path, "colour"), wheel(tmp_path, "tool", files=tool)]
    return given(tmp_path / "packages", packed(tmp_path / "packages", FITTING, wheels))


def test_programs_of_each_kind_have_the_packages(
    make_workspace: Callable[..., Workspace], variables, tmp_path
):
    cache = tmp_path / "node"
    for number, kind in enumerate(("command", "ranks")):
        ranks = {"DTJ_STRATEGY": "TorchDistributed", "DTJ_WORLD_SIZE": "1"} if kind == "ranks" else {}
        pod = make_workspace(str(number), **variables, DTJ_PACKAGES_CACHE=str(cache), **ranks)
        run = pod.python(f"{USE}; os.system('tool')\n{TRY_LOCK}", kind)
        assert run.ended() == 0, run.output
        # One installation serves all pods of the node.
        assert f"colour 1.0 from {cache}/{variables['DTJ_PACKAGES_DIGEST'][7:]}/colour.py" in run.output
        assert "the tool runs" in run.output
        assert "no pod can remove the set" in run.output
        assert ("installed 2 packages" in run.output) == (number == 0)
        assert not list(pod.root.glob(".packages*"))


def test_a_pod_installs_its_own_where_others_could_change_the_shared_set(make_workspace, variables, tmp_path):
    cache = tmp_path / "node"
    cache.mkdir()
    (cache / variables["DTJ_PACKAGES_DIGEST"][7:]).symlink_to(tmp_path)
    pod = make_workspace(**variables, DTJ_PACKAGES_CACHE=str(cache))
    for start in range(2):
        run = pod.python(USE)
        assert run.ended() == 0, run.output
        assert f"{variables['DTJ_PACKAGES_DIGEST'][7:]} is not a folder\n" in run.output
        assert f"from {pod.root}/.packages/" in run.output
        assert ("installed 2 packages" in run.output) == (start == 0)


def test_a_killed_installation_leaves_no_set(make_workspace, tmp_path):
    many = {f"many/module{number}.py": "x = 1\n" for number in range(2000)}
    wheels = [wheel(tmp_path, "colour"), wheel(tmp_path, "many", files=many)]
    variables = given(tmp_path / "packages", packed(tmp_path / "packages", FITTING, wheels))
    cache = tmp_path / "node"
    pod = make_workspace(**variables, DTJ_PACKAGES_CACHE=str(cache))
    place = cache / variables["DTJ_PACKAGES_DIGEST"][7:]
    run = pod.python(USE)
    until(lambda: any(place.with_suffix(".new").rglob("module*.py")), "the installation has begun", 60)
    run.process.kill()  # dtj-launch alone: pip must end with it
    run.process.wait()
    assert not place.exists()
    again = pod.python(USE)
    assert again.ended() == 0, again.output
    assert "installed 2 packages" in again.output
    assert len(list((place / "many").iterdir())) == len(many)
    assert sorted(path.name for path in cache.iterdir()) == [place.name, f"{place.name}.lock"]


def test_sets_that_no_pod_uses_make_room(variables, tmp_path):
    cache = tmp_path / "node"
    cache.mkdir()
    for number in range(10):
        (cache / f"old{number}").mkdir()
        (cache / f"old{number}.lock").touch()
        os.utime(cache / f"old{number}.lock", (number, number))
    (cache / "old1.new/left").mkdir(parents=True)
    with (cache / "old0.lock").open() as pod:
        fcntl.flock(pod, fcntl.LOCK_SH)
        bring_packages(read_settings(pod_variables(tmp_path / "pod", variables, cache)))
    newest = {f"old{number}" for number in range(3, 10)}
    assert {path.name for path in cache.iterdir() if path.is_dir()} == {
        variables["DTJ_PACKAGES_DIGEST"][7:],
        "old0",
        *newest,
    }


def pod_variables(root: Path, archive: dict[str, str], cache: Path | None = None) -> dict[str, str]:
    shared = {"DTJ_PACKAGES_CACHE": str(cache)} if cache else {}
    return {"DTJ_ROOT": str(root), "DTJ_POD": '{"role": "worker", "index": 0}', **archive, **shared}


def refusal(root: Path, archive: Path, found: PackageSet, *wheels: Path, digest: str = "") -> CodeUnavailable:
    """What a pod with this archive is told, in this process."""
    real = packed(archive, found, wheels)
    with pytest.raises(CodeUnavailable) as told:
        bring_packages(read_settings(pod_variables(root, given(archive, digest or real))))
    assert not [path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return told.value


def test_what_a_pod_refuses(tmp_path):
    archive, colour = tmp_path / "packages", wheel(tmp_path, "colour")
    broken, source = tmp_path / "broken-1.0-py3-none-any.whl", tmp_path / "setup.py"
    broken.write_bytes(b"no zip")
    source.touch()
    asked = "sha256:" + "0" * 64
    told = refusal(tmp_path / "0", archive, FITTING, colour, digest=asked)
    assert f"and the job asks for {asked}" in str(told)
    assert told.cause == FailureClass.CODE_UNUSABLE
    assert str(refusal(tmp_path / "1", archive, PackageSet("3.9"), colour)) == (
        f"{archive}: the packages are for Python 3.9, and the image has Python {PYTHON}: "
        f"submit again with --python {PYTHON}"
    )
    other = wheel(tmp_path, "colour", tag="cp27-cp27m-win32")
    for number, (found, given_wheel, message) in enumerate(
        (
            (FITTING, other, f"{other.name} is not a supported wheel on this platform"),
            (FITTING, broken, "broken-1.0-py3-none-any.whl is no complete wheel"),
            (FITTING, source, "contains 'setup.py', which is not a wheel file"),
        ),
        start=2,
    ):
        assert message in str(refusal(tmp_path / str(number), archive, found, given_wheel))


def test_an_image_without_the_packages_that_were_left_out_is_refused(make_workspace, tmp_path):
    found, archive = PackageSet(PYTHON, {"nothing": "1"}), tmp_path / "packages"
    pod = make_workspace(**given(archive, packed(archive, found, [])))
    run = pod.python("print('runs')")
    assert run.ended() == 69, run.output
    assert "runs\n" not in run.output
    assert pod.termination["class"] == "CodeUnusable"
    assert "for an image with nothing 1, and this image has no nothing" in pod.termination["message"]


def test_a_wheel_that_grows_above_the_limit_is_refused(tmp_path, monkeypatch):
    # Deflated a hundredfold: the sizes in its directory are compared.
    monkeypatch.setattr(code, "UNPACKED_BYTES", 10 * 1024**2)
    bomb = wheel(tmp_path, "bomb")
    with zipfile.ZipFile(bomb, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(11 * 1024**2))
    assert "bytes unpacked, and the maximum is 10,485,760" in str(
        refusal(tmp_path / "pod", tmp_path / "packages", FITTING, bomb)
    )
