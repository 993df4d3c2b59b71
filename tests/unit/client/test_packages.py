"""Packages of `dtj submit`: which wheels go to the pods, which the image has, and what is refused.

The registry is a folder of wheels that the tests build.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dtj
from dtj.api.errors import Unusable
from dtj.client import image_python, packages
from dtj.client.image_python import ImagePython, known_packages, python_here, python_of
from dtj.client.packages import Wheels, choose, pack
from dtj_trainer.contract.code_archive import digest_of, unpack
from dtj_trainer.contract.package_set import FILE, PackageSet
from tests.wheels import wheel

OWN = {"torch": "2.13.0+cpu", "numpy": "2.4.6", "pillow": "13.0.0", "web": "5.0", "tensorflow-cpu": "2.21.0"}
OWN["built"] = "0.28.1"
LIGHT = ["torch>=2.1", "numpy", "tiny"]
Choose = Callable[..., Wheels]


def image(**other: str) -> ImagePython:
    known = python_of("dtj-trainer-horovod:0.1.0")
    return ImagePython("the image it:1", known.version, known.platforms, OWN | other)


@pytest.fixture(params=["pip", "uv"])
def choosing(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Choose wheels of a requirements.txt from a registry of this test, by pip and, where it is installed, uv."""
    if request.param == "uv" and shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    if request.param == "pip":
        monkeypatch.setattr(packages.shutil, "which", lambda _: None)
    registry = tmp_path / "registry"
    for name, version, requires in (
        ("light", "1.0", LIGHT), ("tiny", "0.3", []), ("tiny", "0.4", []), ("pillow", "12.0.0", []),
        ("pillow", "14.0.0", []), ("old", "1.0", ["numpy<2"]), ("numpy", "1.26.4", []), ("torch", "2.9.0", []),
        ("torch", "2.13.0", ["nvidia-cublas"]), ("cuda", "1.0", ["nvidia-cublas"]), ("nvidia_cublas", "1.0", []),
        ("styled", "1.0", ["pillow<13", "tiny"]),
        ("tensorflow", "2.21.0", []), ("tensorflow", "2.22.0", []), ("site", "1.0", ["web[fast]"]),
    ):  # fmt: skip
        wheel(registry, name, version, requires=requires)
    # `web` is in the image, and its extra needs a package that is not.
    wheel(registry, "web", "5.0", requires=['loop; extra == "fast"'], extras=["fast"])
    wheel(registry, "loop", "1.0")
    wheel(registry, "newer", "1.0", tag="cp312-cp312-manylinux_2_28_x86_64")
    (registry / "source-1.0.tar.gz").write_bytes(b"")
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(registry),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    for name, value in {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(registry), "UV_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)

    def choice(text: str, *replaced: str, of: ImagePython | None = None) -> Wheels:
        requirements, folder = tmp_path / "requirements.txt", tmp_path / "wheels"
        requirements.write_text(text)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return choose(requirements, of or image(), folder, replaced)

    return choice


def chosen(wheels: Wheels) -> list[str]:
    return ["-".join(path.name.split("-")[:2]) for path in wheels.paths]


@pytest.mark.parametrize(
    ("requirements", "expected", "of_image"),
    [
        # What the image has in a fitting version is not downloaded, nor what it would need.
        (
            "light  # the newest\n\npillow==12.0.0\nweb; python_version < '3'\ntensorflow>=2.20\ntorch\n",
            ["light-1.0", "pillow-12.0.0", "tiny-0.4"],
            ["numpy", "tensorflow-cpu", "torch"],
        ),
        # An extra of a package that no registry has a wheel of is the image's.
        ("built[fast]\ntiny", ["tiny-0.4"], ["built"]),
        # A package of a package may hide one of the image that is not protected. An extra may need more.
        (
            "styled\nsite\ntiny<0.4",
            ["loop-1.0", "pillow-12.0.0", "site-1.0", "styled-1.0", "tiny-0.3"],
            ["web"],
        ),
    ],
)
def test_what_goes_to_the_pods(
    choosing: Choose, requirements: str, expected: list[str], of_image: list[str]
) -> None:
    wheels = choosing(requirements)
    assert chosen(wheels) == expected
    assert wheels.found == PackageSet("3.11", {name: OWN[name] for name in of_image})


@pytest.mark.parametrize(
    ("requirements", "message", "remedy"),
    [
        (
            "torch==2.9.0",
            r"asks for torch==2\.9\.0, which would hide torch 2\.13\.0\+cpu of the image it:1",
            "--replace-package torch",
        ),
        (
            "old",
            r"does not fit the image it:1: .*old 1\.0 depends on numpy<2.*the image has numpy==2\.4\.6",
            "--replace-package",
        ),
        ("cuda", "brings nvidia-cublas 1.0, which would hide nvidia-cublas", "--replace-package nvidia-cublas"),
        ("source\nnewer", "there is no wheel of source for Python 3.11 on manylinux_2_36_x86_64", "pip wheel"),
    ],
)  # fmt: skip
def test_what_is_refused(choosing: Choose, requirements: str, message: str, remedy: str) -> None:
    with pytest.raises(Unusable) as refusal:
        choosing(requirements)
    assert re.search(message, refusal.value.message)
    assert remedy in str(refusal.value.remedy)


def test_a_package_that_may_be_replaced(choosing: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = choosing("old", "numpy")
    assert chosen(wheels) == ["numpy-1.26.4", "old-1.0"]
    assert "numpy" not in wheels.found.image
    monkeypatch.setattr(packages.code_archive, "UNPACKED_BYTES", 100)
    with pytest.raises(Unusable, match=r"bytes installed, and the maximum is 100"):
        choosing("old", "numpy")


def test_an_image_that_is_not_known(choosing: Choose) -> None:
    unknown = ImagePython("the image own:1", "3.11", image().platforms, None)
    with pytest.raises(Unusable) as refusal:
        choosing("numpy", of=unknown)
    assert refusal.value.message == (
        "requirements.txt brings numpy 1.26.4, which would hide numpy of the image own:1, whose version dtj does "
        "not know"
    )
    with pytest.raises(Unusable, match=r"does not know which Python the image own:1 has"):
        python_of("own:1")
    assert python_of("own:1", "3.12", "manylinux_2_28_aarch64").platforms[:2] == (
        "manylinux_2_28_aarch64",
        "manylinux_2_27_aarch64",
    )
    for given_wrong, message in (
        ({"version": "3"}, "--python must be"),
        ({"version": "3.11", "platform": "linux/amd64"}, "--platform must be"),
    ):
        with pytest.raises(Unusable, match=message):
            python_of("own:1", **given_wrong)


def test_a_file_with_hashes_needs_no_resolver(choosing: Choose, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    hashes = {
        name: digest_of(registry / f"{name}-py3-none-any.whl")
        for name in ("light-1.0", "tiny-0.3", "torch-2.13.0")
    }
    text = "".join(f"{name.replace('-', '==')} \\\n    --hash={digest}\n" for name, digest in hashes.items())
    wheels = choosing(text)
    assert chosen(wheels) == ["light-1.0", "tiny-0.3"]
    assert wheels.found.image == {"torch": OWN["torch"]}
    with pytest.raises(Unusable, match=r"(?i)hash"):
        choosing(text.replace(hashes["tiny-0.3"], "sha256:" + "0" * 64))


def test_the_archive_has_equal_bytes_and_comes_back(tmp_path: Path) -> None:
    wheels = Wheels(
        tuple(wheel(tmp_path, name) for name in ("a", "b")), PackageSet("3.11", {"torch": "2.13.0"})
    )
    digests = set()
    for name in ("first", "second"):
        with (tmp_path / name).open("wb") as file:
            digests.add(pack(wheels, file).digest)
    (digest,) = digests
    unpack(tmp_path / "first", digest, tmp_path / "back")
    assert {path.name for path in (tmp_path / "back").iterdir()} == {
        FILE,
        *(path.name for path in wheels.paths),
    }
    assert PackageSet.from_json((tmp_path / "back" / FILE).read_bytes()) == wheels.found


@settings(max_examples=50, deadline=None)
@given(
    st.text("0123456789.", min_size=1),
    st.dictionaries(st.text(min_size=1), st.text()),
    st.dictionaries(st.text(min_size=1), st.text()),
)
def test_equal_sets_have_equal_texts(python: str, image: dict[str, str], other: dict[str, str]) -> None:
    text = PackageSet(python, image).to_json()
    assert PackageSet.from_json(text) == PackageSet(python, image)
    assert (text == PackageSet(python, dict(reversed(other.items()))).to_json()) == (image == other)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"python": 3}', '{"python": "3.11", "image": {"a": 1}}'])
def test_what_is_no_set_of_packages(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        PackageSet.from_json(text)


def test_images_of_this_release_are_known_by_name_in_any_registry() -> None:
    for name, own in known_packages().items():
        tag = dtj.__version__
        for reference in (f"{name}:{tag}", f"reg.example:5000/ml/{name}:{tag}-compile@sha256:{'0' * 64}"):
            assert python_of(reference).packages == {**own, "dtjob": tag}
        with pytest.raises(Unusable):
            python_of(f"{name}:9.9.9")


def test_images_for_gpus_have_the_python_of_their_page_and_the_pinned_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = (Path(__file__).parents[3] / "docs/gpu-images.md").read_text()
    (tag,) = set(re.findall(r"reg\S+/dtj-trainer-horovod:(\S+-\S+)", page))
    assert set(re.findall(r"--base \S+-(\w+[\d.]+) ", page)) == {"ubuntu24.04"}, "whose Python is 3.12"
    monkeypatch.setattr(image_python, "_labels", lambda _: {})
    torch, tensorflow = (
        python_of(f"reg.example/dtj-trainer-{name}:{tag}") for name in ("horovod", "tensorflow")
    )
    assert torch.version == tensorflow.version == "3.12"
    assert torch.packages is not None
    assert torch.packages["torch"] == known_packages()["dtj-trainer-horovod"]["torch"].partition("+")[0]
    assert tensorflow.packages is not None
    assert tensorflow.packages.keys() & {"tensorflow", "tensorflow-cpu"} == {"tensorflow"}
    with pytest.raises(Unusable, match="does not know which Python"):
        python_of(f"reg.example/dtj-trainer-horovod:{dtj.__version__}-ours")
    labels = {"dtj.dev/python": "3.13", "dtj.dev/packages": "torch==2.13.1"}
    monkeypatch.setattr(image_python, "_labels", lambda _: labels)
    found = python_of(f"reg.example/dtj-trainer-horovod:{tag}")
    assert (found.version, found.packages) == ("3.13", {"torch": "2.13.1"})


def test_labels_of_an_image_tell_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {"dtj.dev/python": "3.12", "dtj.dev/packages": "torch==2.13.0 PyYAML==6.0.3"}
    monkeypatch.setattr(image_python, "_labels", lambda _: labels)
    found = python_of("own:1")
    assert (found.version, found.packages) == ("3.12", {"torch": "2.13.0", "pyyaml": "6.0.3"})


def test_the_python_of_this_machine() -> None:
    own = python_here()
    assert own.packages is not None
    assert own.packages["pytest"] == pytest.__version__
    assert own.version == f"{sys.version_info.major}.{sys.version_info.minor}"
