"""The Dockerfiles, as far as they can be judged without building them; the cluster's tests run the images."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOCKER = REPOSITORY / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))


def test_there_are_images() -> None:
    names = {"operator", "tensorboard", "trainer-horovod", "trainer-tensorflow"}
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
        "numpy",
        "py-spy",
        "tensorboardX",
    }
    todo, seen = [re.split("[=<>]", line)[0] for lines in requirements.values() for line in lines], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        # As the packages of .venv say, which has the versions of the image.
        for line in metadata.requires(name) or []:
            if "extra ==" not in line:
                todo.append(re.split(r"[^\w.-]", line)[0])
    assert "keras" in seen
    assert "tensorboard" not in seen
    pinned = (REPOSITORY / "constraints.txt").read_text().lower().replace("_", "-")
    assert [name for name in seen if f"\n{name.lower().replace('_', '-')}==" not in pinned] == []


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
    assert sorted(re.findall(r"/(\w+)\.txt", line)[-1] for line in installs) == wanted
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


@pytest.mark.parametrize(
    ("args", "missing"),
    [
        (["TENSORFLOW=tensorflow"], ["PACKAGES_FROM=index"]),
        (["TENSORFLOW=tensorflow", "PACKAGES_FROM=index"], []),
        (["TENSORFLOW=tensorflow[and-cuda]"], ["PACKAGES_FROM=index", "HOROVOD_FROM=source"]),
        (["TENSORFLOW=tensorflow[and-cuda]", "PACKAGES_FROM=index"], ["HOROVOD_FROM=source"]),
        (["HOROVOD_GPU_OPERATIONS=NCCL", "PACKAGES_FROM=index"], ["HOROVOD_FROM=source"]),
        (["HOROVOD_GPU_OPERATIONS=NCCL", "HOROVOD_FROM=source"], []),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(
    tmp_path: Path, args: list[str], missing: list[str]
) -> None:
    program = """
import build, sys
build._wheel_fits_image = lambda: True
build.archive_of = lambda image: print("built")
sys.argv = ["build.py", "--image", "trainer-tensorflow", *(f"--build-arg={arg}" for arg in sys.argv[1:])]
try:
    build.main()
except SystemExit as error:
    print(error)
"""
    said = in_builder(program, *args, cache=tmp_path)
    wanted = " ".join(f"--build-arg {each}" for each in missing)
    assert (f"{args[0]} does nothing without {wanted}: add it" in said) == bool(missing), said
    assert ("built" in said) == (not missing), said


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
for id, given in (("sha256:abc", args), ("sha256:of another variant", [*args, *more])):
    docker.ids["dtj-trainer-horovod:x"] = id
    sys.argv = ["build.py", *given]
    build.main()
assert asked == [(build.IMAGE, {}), ("cuda:1", {"MINE": "1", "PACKAGES_FROM": "index"})], asked
assert seen == [{}, "save", "load", {"MINE": "1"}, "save"], seen
assert len(list(build.ARCHIVES.glob("mine_1-*.tar"))) == 2
""",
        cache=tmp_path,
    )
