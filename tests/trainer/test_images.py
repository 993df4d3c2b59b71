"""The Dockerfiles, as far as they can be checked without a build. The cluster tests run the images.

* users, pins and patches
* rebuilds, bases and build arguments
* images for CUDA
* checks of an image while it is built
* images of users
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dtj_trainer.train.export_process import FORMS

REPOSITORY = Path(__file__).parents[2]
DOCKER = REPOSITORY / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))


def test_there_are_images() -> None:
    names = {"operator", "serve", "tensorboard", "trainer-horovod", "trainer-tensorflow"}
    assert {path.name.removesuffix(".Dockerfile") for path in DOCKERFILES} == names


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint(dockerfile: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, "--no-color", dockerfile], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_images_run_as_a_number_that_is_not_root(dockerfile: Path) -> None:
    users = [line.split()[1] for line in dockerfile.read_text().splitlines() if line.startswith("USER ")]
    assert users[-1] == "1000:1000"


def in_builder(program: str, *arguments: str | Path, cache: Path | None = None) -> str:
    """Run a program that has docker/ on its path; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(DOCKER)!r})\n{program}", *arguments],
        env={**os.environ, **({"DTJ_CACHE": str(cache)} if cache else {})},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_image_of_a_pod_ends_as_that_number() -> None:
    """A Dockerfile has several that pods run, not only its last."""
    targets = json.loads(
        in_builder(
            "import build, json\n"
            "print(json.dumps({i.name: list(i.tags.values()) for i in build.images(build.IMAGE, {})}))"
        )
    )
    for name, stages in targets.items():
        text = (DOCKER / f"{name}.Dockerfile").read_text()
        for stage in stages:
            content = re.split(rf"^FROM \S+ AS {stage}\n", text, flags=re.MULTILINE)[1].split("\nFROM ")[0]
            assert re.findall(r"^USER (\S+)", content, re.MULTILINE)[-1] == "1000:1000", (name, stage)


def closure(names: list[str]) -> set[str]:
    """The distributions that these bring along, as the packages of .venv say, which has the images' versions."""
    todo, seen = [*names], set()
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        for needed in map(Requirement, metadata.requires(name) or []):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                todo.append(needed.name)
    return seen


def unpinned(names: set[str]) -> list[str]:
    """Those that constraints.txt lacks."""
    pinned = (REPOSITORY / "constraints.txt").read_text().lower().replace("_", "-")
    return [name for name in names if f"\n{name}==" not in pinned]


def test_what_tensorflow_needs_is_pinned_and_tensorboard_is_not_among_it() -> None:
    program = """
import build, json
(image,) = [i for i in build.images(build.IMAGE, {}) if i.name == "trainer-tensorflow"]
print(json.dumps(image.requirements))
"""
    requirements = json.loads(in_builder(program))
    assert all("==" in line for line in requirements["tensorflow"])
    assert {re.split("[=<>]", line)[0] for line in requirements["trainer"]} == {
        "boto3",
        "google-crc32c",
        "isal",
        "mlflow-skinny",
        "numpy",
        "nvidia-ml-py",
        "onnx",
        "onnxruntime",
        "pillow",
        "protobuf",
        "psutil",
        "py-spy",
        "pyyaml",
        "simplejpeg",
        "tensorboardX",
        "tf2onnx",
    }
    needed = closure([re.split("[=<>]", line)[0] for lines in requirements.values() for line in lines])
    assert "keras" in needed
    assert "tensorboard" not in needed
    assert unpinned(needed) == []


@pytest.mark.parametrize(
    ("name", "form"), [("trainer-horovod", "model.pt2"), ("trainer-tensorflow", "model.keras")]
)
def test_the_trainers_images_have_what_the_export_of_their_models_needs(name: str, form: str) -> None:
    program = f"""
import build, json
(image,) = [i for i in build.images(build.IMAGE, {{}}) if i.name == {name!r}]
print(json.dumps(image.requirements["trainer"]))
"""
    has = [re.split("[=<>]", line)[0] for line in json.loads(in_builder(program))]
    assert {*FORMS[form]} <= {*has}
    assert unpinned(closure(has)) == []
    assert {"fastapi", "uvicorn"}.isdisjoint(has)
    assert {*has} & {*chain(*FORMS.values())} == {*FORMS[form]}, "the other framework's converter is left out"


def test_the_server_runs_with_what_its_image_has(tmp_path: Path) -> None:
    """The files of the image's context, and the distributions that its requirements bring along."""
    program = """
import build, json, shutil, sys
from pathlib import Path
(image,) = [i for i in build.images(build.IMAGE, {}) if i.name == "serve"]
(context := Path(sys.argv[1])).mkdir()
image.write_context(context, [])
print(json.dumps(image.requirements["serve"]))
"""
    requirements = json.loads(in_builder(program, tmp_path / "context", cache=tmp_path))
    kept = closure([re.split("[=<>]", line)[0] for line in requirements])
    assert "onnxruntime" in kept
    assert unpinned(kept) == []
    assert kept.isdisjoint({"torch", "tensorflow-cpu", "keras", "onnx", "kubernetes", "typer"})
    others = {
        module
        for module, names in metadata.packages_distributions().items()
        if kept.isdisjoint(name.lower().replace("_", "-") for name in names)
    }
    hiding = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HIDDEN:
            raise ModuleNotFoundError(name)

HIDDEN = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Absent())
import dtj_trainer
from dtj_trainer.serving.serve import main
print(dtj_trainer.__file__)
main(["--help"])
"""
    done = subprocess.run(
        [sys.executable, "-c", hiding, ",".join(others - {"dtj_trainer"})],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "context/dtj/trainer")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))
    assert "--max-batch" in done.stdout


def made_of(dockerfile: Path, target: str, **args: str) -> str:
    """The text of all stages that a target is made of, for these build arguments."""
    text = dockerfile.read_text().replace("\\\n", " ")
    defaults = dict(re.findall(r"^ARG (\w+)=(.*)$", text.split("\nFROM ")[0], re.MULTILINE))
    values = {**defaults, **args}
    text = re.sub(r"\$\{(\w+)\}", lambda found: values.get(found[1], found[0]), text)
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL))
    bases = {name: base for base, name in re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)}
    todo, seen = [target], []
    while todo:
        name = todo.pop()
        if name in stages and name not in seen:
            seen.append(name)
            todo += [bases[name], *re.findall(r"\bfrom=([^,\s]+)", stages[name])]
    return "\n".join(stages[name] for name in seen)


def test_keras_2_is_in_the_images_of_tensorflow_without_a_second_tensorflow(tmp_path: Path) -> None:
    """tf_keras asks for the package tensorflow, and the images have tensorflow-cpu."""
    program = """
import build, sys
from pathlib import Path
asked = {}
def wheelhouse(name, lines, *, alone=False):
    asked[name] = (sorted(lines), alone)
    (folder := Path(sys.argv[1]) / name).mkdir()
    (folder / "tf_keras-1.whl").touch()
    return folder
build.wheelhouse = wheelhouse
build.horovod_wheel = lambda name: Path("/horovod.whl")
image = next(i for i in build.images(build.IMAGE, {}) if i.name == "trainer-tensorflow")
print([wheel.parent.name for wheel in image.wheels() if wheel.name.startswith("tf_keras")])
print(asked["trainer-tensorflow-alone"], any("keras" in line for line in asked["trainer-tensorflow"][0]))
(context := Path(sys.argv[1]) / "context").mkdir()
image.write_context(context, [])
print((context / "requirements/alone.txt").read_text())
"""
    said = in_builder(program, tmp_path, cache=tmp_path)
    assert said.splitlines() == [
        "['trainer-tensorflow', 'trainer-tensorflow-alone']",
        "(['tf-keras==2.21.0'], True) False",
        "tf-keras==2.21.0",
        "",
    ]


def test_the_archives_of_two_worktrees_are_kept_and_of_three_the_newest(tmp_path: Path) -> None:
    program = """
import build, os
from types import SimpleNamespace
build.ARCHIVES.mkdir()
docker = SimpleNamespace(own=False, run=lambda *words: words[2].write_bytes(b""))
for time, name in enumerate(["operator-a", "operator-b", "other-a"]):
    path = build.ARCHIVES / f"{name[:-2]}-{name[-1] * 16}.tar"
    build._save(docker, [], path)
    os.utime(path, (time, time))
build._is_kept(build.ARCHIVES / f"operator-{'a' * 16}.tar")
build._save(docker, [], build.ARCHIVES / f"operator-{'c' * 16}.tar")
print(*sorted(path.name[:-19] for path in build.ARCHIVES.iterdir()))
"""
    assert in_builder(program, cache=tmp_path) == "operator-a operator-c other-a\n"


@pytest.mark.parametrize("source", ["wheelhouse", "index"])
def test_what_is_installed_alone_brings_nothing_with_it(source: str) -> None:
    stages = made_of(DOCKER / "trainer-tensorflow.Dockerfile", "tensorflow", PACKAGES_FROM=source)
    (install,) = re.findall(r"pip install [^&\n]*alone\.txt", stages)
    assert "--no-deps" in install
    assert ("--no-index" in install) == (source == "wheelhouse")


@pytest.mark.parametrize(("source", "offline"), [("wheelhouse", True), ("index", False)])
@pytest.mark.parametrize(
    ("name", "target", "wanted"),
    [
        ("trainer-horovod", "trainer", ["horovod", "trainer"]),
        ("trainer-tensorflow", "trainer", ["tensorflow", "trainer"]),
        ("trainer-tensorflow", "trainer-horovod", ["tensorflow", "trainer"]),
    ],
)
def test_requirements_come_from_where_they_are(
    name: str, target: str, wanted: list[str], source: str, offline: bool
) -> None:
    """With PACKAGES_FROM=index there is nothing in the wheelhouse but what dtj's own wheel is built with."""
    stages = made_of(DOCKER / f"{name}.Dockerfile", target, PACKAGES_FROM=source)
    installs = [line for line in stages.splitlines() if "--requirement " in line]
    assert sorted(re.findall(r"--requirement \S*/(\w+)\.txt", line)[0] for line in installs) == wanted
    assert [("--no-index" in line, "--find-links" in line) for line in installs] == [
        (offline, offline)
    ] * len(wanted)


@pytest.mark.parametrize("name", ["trainer-horovod", "trainer-tensorflow"])
def test_open_mpi_is_told_on_a_line_of_its_own(name: str) -> None:
    """Debian's file ends without a newline: what follows would become part of its last setting."""
    told = re.findall(
        r"(\S+ '[^']*') >> \S*openmpi-mca-params.conf", (DOCKER / f"{name}.Dockerfile").read_text()
    )
    assert told == [r"printf '\nbtl_vader_single_copy_mechanism = none\n'"]


@pytest.mark.parametrize("patch", sorted((DOCKER / "horovod").glob("*.patch")), ids=lambda path: path.name)
def test_each_patch_says_why(patch: Path) -> None:
    reason = patch.read_text().split("\n--- ")[0]
    assert len(reason.split()) > 10
    assert patch.stem in (DOCKER / "horovod/README.md").read_text()


def key(cache: Path, change: str = "") -> str:
    """The Horovod image's key, after a change to this process's view of the repository."""
    program = (
        "import build, host, wheels\n"
        "from pathlib import Path\n"
        "build.Image.wheels = lambda self: [Path('/wheels/abc/some.whl')]\n"
        "image = build.images(build.IMAGE, {})[1]\n"
        f"{change}\n"
        "print(image.key(image.wheels()))\n"
    )
    return in_builder(program, cache=cache)


def test_an_image_is_built_again_when_something_it_is_made_of_changes(tmp_path: Path) -> None:
    same = key(tmp_path)
    assert key(tmp_path) == same
    extra = tmp_path / "extra.py"
    extra.write_text("")
    changes = [
        f"build.REPOSITORY = Path('/'); image.sources.append(Path('{extra}'))",
        "image.args['BASE_IMAGE'] = 'other'",
        "image.requirements['trainer'].append('more')",
        "build.HOROVOD_VERSION = 'other'",
        f"build.GPU_CHECK = Path('{extra}')",
        "build.FRAMEWORKS['torch'].options['HOROVOD_WITH_MPI'] = '0'",
    ]
    assert len({same, *(key(tmp_path, change) for change in changes)}) == 1 + len(changes)


@pytest.mark.parametrize(
    ("docker", "message"),
    [
        ("echo first >&2; echo 'no route to host' >&2; exit 1", "can't be pulled: no route to host"),
        ("exit 3", "can't be pulled: docker pull ended with 3"),
        ("exec sleep 30", "can't be pulled: not done after 0 s"),
        ("exit 0", "pulled"),
    ],
)
def test_a_base_that_cannot_be_pulled_says_why(tmp_path: Path, docker: str, message: str) -> None:
    command = tmp_path / "docker"
    command.write_text(f"#!/bin/sh\n[ $1 != image ] || exit 1\n{docker}\n")
    command.chmod(0o755)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import base, engine, host\n"
        "assert base.PULL_SECONDS >= 3600\n"
        "base.PULL_SECONDS = 0.3 if 'sleep' in sys.argv[3] else 20\n"
        "try:\n"
        "    base.ensure_base(engine.Engine(sys.argv[2], None), 'nvidia/cuda:x')\n"
        "    print('pulled')\n"
        "except host.BuildError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, DOCKER, command, docker], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith(message)


def test_archives_of_another_base_lie_beside_the_usual_ones(tmp_path: Path) -> None:
    in_builder(
        """
import build
from pathlib import Path

usual = build.images(build.IMAGE, {})
assert {image.variant for image in usual} == {""}
asked = [("cuda:1", {}), ("cuda:2", {}), (build.IMAGE, {"PACKAGES_FROM": "index"})]
others = [build.images(*each) for each in asked]
assert len({images[1].variant for images in others}) == 3
assert others[2][0] == usual[0], "the operator's Dockerfile has no such argument"
assert others[2][1].args["PACKAGES_FROM"] == "index"

folder = build._made(build.ARCHIVES)
def named(prefix, digit):
    path = folder / f"{prefix}-{digit * 16}.tar"
    path.touch()
    return path
old, new = named("trainer", "a"), named("trainer", "b")
other, other_new = named("trainer-0123abcd", "a"), named("trainer-0123abcd", "b")
named("trainer-horovod", "a")
assert build._older(new) == [old]
assert build._older(other_new) == [other]
""",
        cache=tmp_path,
    )


DEVEL = "BUILD_IMAGE=nvidia/cuda:13.0.2-devel-ubuntu24.04"
BASE = "nvidia/cuda:13.0.2-base-ubuntu24.04"
INDEX, SOURCE, NCCL = "PACKAGES_FROM=index", "HOROVOD_FROM=source", "HOROVOD_GPU_OPERATIONS=NCCL"
TORCH, TENSORFLOW = "trainer-horovod", "trainer-tensorflow"
CUDA_TENSORFLOW = "TENSORFLOW=tensorflow[and-cuda]"


def said_of(cache: Path, image: str, args: list[str], base: str = "") -> str:
    """What the builder says of one image and these arguments, which it does not build."""
    program = """
import build, sys
build._wheel_fits_image = lambda: True
build.archive_of = lambda image: print("built", *image.tags.values(), image.horovod or "without Horovod")
sys.argv = ["build.py", "--image", *sys.argv[1:]]
try:
    build.main()
except SystemExit as error:
    print(error)
"""
    words = [*(["--base", base] if base else []), *(f"--build-arg={arg}" for arg in args)]
    return in_builder(program, image, *words, cache=cache)


@pytest.mark.parametrize(
    ("image", "args", "missing"),
    [
        (TENSORFLOW, ["TENSORFLOW=tensorflow"], [INDEX]),
        (TENSORFLOW, ["TENSORFLOW=tensorflow", INDEX], []),
        (TENSORFLOW, [CUDA_TENSORFLOW], [INDEX]),
        (TENSORFLOW, [CUDA_TENSORFLOW, INDEX], []),
        (TORCH, ["HOROVOD_BUILD_CUDA_CC_LIST=90"], [SOURCE]),
        (TORCH, ["HOROVOD_NCCL_LINK=STATIC"], [SOURCE]),
        (TORCH, ["HOROVOD_NCCL_HOME=/opt/nccl"], [SOURCE]),
        (TORCH, [NCCL, INDEX], [SOURCE]),
        (TORCH, ["TORCH_VERSION=2.12.0", DEVEL], [INDEX]),
        (TORCH, ["TORCH_VERSION=2.13.0+cpu", INDEX], []),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(
    tmp_path: Path, image: str, args: list[str], missing: list[str]
) -> None:
    said = said_of(tmp_path, image, args)
    wanted = " ".join(f"--build-arg {each}" for each in missing)
    assert (f"{args[0]} does nothing without {wanted}: add it" in said) == bool(missing), said
    assert ("built" in said) == (not missing), said


@pytest.mark.parametrize(
    ("base", "args", "missing"),
    [
        (BASE, [INDEX], f"without --build-arg {SOURCE} --build-arg {NCCL}: add it"),
        (BASE, [INDEX, SOURCE, DEVEL], f"without --build-arg {NCCL}: add it"),
        (BASE, [INDEX, SOURCE, DEVEL, "HOROVOD_GPU_OPERATIONS=MPI"], f"without --build-arg {NCCL}: add it"),
        ("", [INDEX, SOURCE, NCCL], "add --build-arg BUILD_IMAGE=nvidia/cuda:13.0.<patch>-devel-ubuntu24.04"),
        (
            BASE,
            [INDEX, SOURCE, NCCL],
            "has no nvcc, which compiles Horovod's operations on GPUs: add --build-arg",
        ),
        (
            "mirror.example.com/nvidia/cuda:12.8.1-base-ubuntu24.04",
            [INDEX, SOURCE, NCCL, DEVEL],
            "has CUDA 12.8, PyTorch is built with CUDA 13.0: take an image of that",
        ),
        (BASE, [INDEX, SOURCE, NCCL, DEVEL, "TORCH_VERSION=2.13.0+cu126"], "PyTorch is built with CUDA 12.6"),
        (
            BASE,
            [INDEX, SOURCE, NCCL, "BUILD_IMAGE=nvidia/cuda:13.0.2-devel-ubuntu22.04"],
            "are of different systems",
        ),
    ],
)
def test_a_pytorch_with_cuda_is_built_with_nccl_for_its_own_cuda_or_not_at_all(
    tmp_path: Path, base: str, args: list[str], missing: str
) -> None:
    said = said_of(tmp_path, TORCH, args, base)
    assert missing in said, said
    assert "built trainer" not in said


@pytest.mark.parametrize(
    ("base", "args"),
    [
        (BASE, [INDEX, SOURCE, NCCL, DEVEL]),
        (
            BASE,
            [
                INDEX,
                SOURCE,
                NCCL,
                DEVEL,
                "HOROVOD_BUILD_CUDA_CC_LIST=80,90",
                "PIP_INDEX_URL=https://pypi.example.com",
            ],
        ),
        ("ubuntu:24.04", [INDEX, SOURCE, NCCL, DEVEL]),
        (
            "registry.example.com/ours:1",
            [INDEX, SOURCE, NCCL, "BUILD_IMAGE=registry.example.com/ours-devel:1"],
        ),
        (
            "nvidia/cuda:12.6.3-base-ubuntu24.04",
            [
                INDEX,
                SOURCE,
                NCCL,
                "BUILD_IMAGE=nvidia/cuda:12.6.3-cudnn-devel-ubuntu24.04",
                "TORCH_VERSION=2.13.0+cu126",
            ],
        ),
    ],
)
def test_an_image_of_pytorch_for_gpus_is_built(tmp_path: Path, base: str, args: list[str]) -> None:
    assert "built horovod trainer compile torch" in said_of(tmp_path, TORCH, args, base)


def test_tensorflow_for_gpus_comes_without_horovod_which_can_not_be_built_for_it(tmp_path: Path) -> None:
    asked = [CUDA_TENSORFLOW, INDEX]
    base = "nvidia/cuda:12.9.1-base-ubuntu24.04"
    assert "built tensorflow trainer without Horovod\n" in said_of(tmp_path, TENSORFLOW, asked, base)

    said = said_of(tmp_path, TENSORFLOW, [*asked, NCCL], base)
    assert "built" not in said.replace("can't be built", "")
    assert "AsGpuStreamValue, which TensorFlow has no more" in said
    assert "second cuDNN" in said_of(
        tmp_path, TENSORFLOW, asked, "nvidia/cuda:12.9.1-cudnn-runtime-ubuntu24.04"
    )


CHECK = """
import gpu_check
framework = gpu_check.Framework(*({framework!r}))
print(*gpu_check.{what}, sep="\\n")
"""


@pytest.mark.parametrize(
    ("framework", "what", "fault"),
    [
        (("PyTorch 2.13.0+cpu", None), "before_horovod(framework, '', None)", ""),
        (
            ("PyTorch 2.13.0+cpu", None),
            "before_horovod(framework, 'NCCL', '13.0.2')",
            "needs a framework with CUDA",
        ),
        (("PyTorch 2.13.0", "13.0"), "before_horovod(framework, '', None)", "For an image for CPUs"),
        (("PyTorch 2.13.0", "13.0"), "before_horovod(framework, 'NCCL', None)", "BUILD_IMAGE has no CUDA"),
        (
            ("PyTorch 2.13.0", "13.0"),
            "before_horovod(framework, 'NCCL', '12.8.1')",
            "BUILD_IMAGE has CUDA 12.8.1",
        ),
        (("PyTorch 2.13.0", "13.0"), "before_horovod(framework, 'NCCL', '13.0.2')", ""),
        (("PyTorch 2.13.0+cpu", None), "image(framework, False, None)", ""),
        (("PyTorch 2.13.0+cpu", None), "image(framework, True, None)", "compiled with NCCL"),
        (("PyTorch 2.13.0", "13.0"), "image(framework, False, '13.0.2')", "without NCCL"),
        (("PyTorch 2.13.0", "13.0"), "image(framework, True, None)", ""),
        (("PyTorch 2.13.0", "13.0"), "image(framework, True, '13.0.2')", ""),
        (("PyTorch 2.13.0", "13.0"), "image(framework, True, '13.1.0')", "BASE_IMAGE has CUDA 13.1.0"),
    ],
)
def test_a_wrong_image_fails_while_it_is_built(
    framework: tuple[str, str | None], what: str, fault: str
) -> None:
    said = in_builder(CHECK.format(framework=framework, what=what)).strip()
    assert bool(said) == bool(fault)
    assert fault in said


@pytest.mark.parametrize("name", ["trainer-horovod", "trainer-tensorflow"])
def test_a_container_sees_the_gpus_that_it_is_given_and_no_others(name: str) -> None:
    """Whatever the base image says: NVIDIA's have `all`, by which a pod without GPUs sees those of others."""
    text = (DOCKER / f"{name}.Dockerfile").read_text()
    system = re.split(r"^FROM \S+ AS system\n", text, flags=re.MULTILINE)[1].split("\nFROM ")[0]
    said = dict(re.findall(r"(?:^ENV|^   ) (\w+)=(\S+)", system, re.MULTILINE))
    assert said["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "compute" in said["NVIDIA_DRIVER_CAPABILITIES"].split(",")


@pytest.mark.parametrize("name", ["trainer-horovod", "trainer-tensorflow"])
def test_an_image_with_horovod_is_checked_where_it_is_whole(name: str) -> None:
    """Also the program that checks goes into the context, and makes another image when it changes."""
    target = "horovod" if name == "trainer-horovod" else "trainer-horovod"
    stage = re.split(
        rf"^FROM \S+ AS {target}\n", (DOCKER / f"{name}.Dockerfile").read_text(), flags=re.MULTILINE
    )[1]
    assert "python -B /requirements/gpu_check.py image\n" in stage.split("\nFROM ")[0]


@pytest.mark.parametrize(
    ("hidden", "said"),
    [("", "whl/cpu, where this PyTorch"), ("torch", "--build-arg TENSORFLOW: tensorflow-cpu")],
)
def test_the_check_says_how_to_have_the_framework_without_cuda(hidden: str, said: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorflow")
    program = f"""
import gpu_check
real = gpu_check.find_spec
gpu_check.find_spec = lambda name: None if name == {hidden!r} else real(name)
framework, horovod = gpu_check._installed()
print(gpu_check.image(framework._replace(cuda="13.0"), False, None), horovod)
"""
    printed = in_builder(program)
    assert said in printed
    assert ("horovod.tensorflow" if hidden else "horovod.torch") in printed


def test_the_check_runs_with_what_is_installed_here() -> None:
    pytest.importorskip("horovod.torch")
    for what in ("before-horovod", "image"):
        done = subprocess.run([sys.executable, DOCKER / "gpu_check.py", what], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"CUDA none: {what} is right" in done.stdout


def test_a_new_wheel_takes_the_place_of_the_frameworks_last_one(tmp_path: Path) -> None:
    in_builder(
        """
import wheels
wheels.need_packages = lambda needs: None
wheels.run = lambda command: "mpirun 1\\n"
def build(framework, folder):
    folder.mkdir(parents=True)
    (folder / "horovod-1.whl").touch()
wheels._build_horovod = build
for version in ("1", "2"):
    wheels.HOROVOD_VERSION = version
    made = {name: wheels.horovod_wheel(name) for name in wheels.FRAMEWORKS}
assert sorted(wheels.CACHE.glob("wheels/*/*")) == sorted(made.values())
assert {path.parent.name.rsplit("-", 1)[0] for path in made.values()} == set(wheels.FRAMEWORKS)
""",
        cache=tmp_path,
    )


def test_a_users_own_image_is_built_on_the_base_and_with_the_arguments_given(tmp_path: Path) -> None:
    (tmp_path / "context").mkdir()
    (tmp_path / "context/Dockerfile").write_text("ARG MINE\nFROM dtj-trainer-horovod:x\n")
    in_builder(
        """
import contextlib, io, json, sys, tarfile
from pathlib import Path
import build

cache = build.CACHE
seen, asked = [], []

class Docker:
    own = False
    ids = {}
    def id_of(self, tag): return self.ids.get(tag)
    def run(self, *command):
        seen.append(command[0])
        if command[0] == "save":
            command[2].touch()
    def build(self, context, dockerfile, target, tag, args): seen.append(args)

docker = Docker()
ours = cache / "ours.tar"
with tarfile.open(ours, "w") as tar:
    content = json.dumps([{"Config": "abc.json", "RepoTags": ["dtj-trainer-horovod:x"]}]).encode()
    info = tarfile.TarInfo("manifest.json")
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))
real = build.images
def images(base, args):
    asked.append((base, args))
    return [build.replace(real(base, args)[1], tags={"dtj-trainer-horovod:x": "trainer"})]
build.images = images
build.archive_of = lambda image: ours
build.Image.wheels = lambda self: []
build.engine = lambda: contextlib.nullcontext(docker)

context = str(cache / "context")
args = ["--context", context, "--tag", "mine:1"]
more = ["--base", "cuda:1", "--build-arg", "MINE=1", "--build-arg", "PACKAGES_FROM=index"]
more += ["--build-arg", "TORCH_VERSION=2.13.0+cpu"]
for id, given in (("sha256:abc", args), ("sha256:of another variant", [*args, *more])):
    docker.ids["dtj-trainer-horovod:x"] = id
    sys.argv = ["build.py", *given]
    build.main()
given = {"MINE": "1", "PACKAGES_FROM": "index", "TORCH_VERSION": "2.13.0+cpu"}
assert asked == [(build.IMAGE, {}), ("cuda:1", given)], asked
assert seen == [{}, "save", "load", {"MINE": "1"}, "save"], seen
assert len(list(build.ARCHIVES.glob("mine_1-*.tar"))) == 2
""",
        cache=tmp_path,
    )
