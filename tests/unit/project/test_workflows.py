"""The workflows of GitHub: syntax, faults, and names of things that exist.

actionlint needs a download that the tests do not make; CI's own schema and zizmor's offline rules stand in for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / ".github/workflows").glob("*.yaml"))
BESIDE = Path(sys.executable).parent


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=40 * PATIENCE)


def schema_faults(schema: str, *files: Path) -> str:
    """What check-jsonschema says against files. In this process: its import takes most of its time."""
    done = CliRunner().invoke(check_jsonschema, ["--builtin-schema", f"vendor.{schema}", *map(str, files)])
    assert done.exit_code in {0, 1}, done.output
    return done.output if done.exit_code else ""


def test_there_is_one_for_changes_one_for_releases_and_one_for_advisories() -> None:
    assert [file.stem for file in FILES] == ["advisories", "ci", "release"]


def test_advisories_are_looked_for_each_day_and_when_a_pin_changes() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/advisories.yaml").read_text())
    events = workflow[True]  # YAML 1.1 reads `on` so.
    assert events["schedule"]
    for event in ("push", "pull_request"):
        assert {"constraints.txt", "operator/page/package-lock.json"} <= {*events[event]["paths"]}
        for path in events[event]["paths"]:
            assert (ROOT / path).exists(), path
    assert workflow["jobs"]["audit"]["steps"][-1]["run"] == "python -m tests.advisories"


def test_github_takes_their_form(tmp_path: Path) -> None:
    assert not schema_faults("github-workflows", *FILES)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(FILES[0].read_text().replace("runs-on", "run-on"))
    assert "run-on" in schema_faults("github-workflows", wrong)


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("dependabot", "dependabot.yml"),
        ("github-issue-config", "ISSUE_TEMPLATE/config.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/bug.yaml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/feature.yaml"),
    ],
)
def test_github_takes_the_form_of_its_other_files(schema: str, file: str) -> None:
    assert not schema_faults(schema, ROOT / ".github" / file)


def test_zizmor_finds_no_fault(tmp_path: Path) -> None:
    check = (BESIDE / "zizmor", "--offline", "--persona", "pedantic", "--no-progress")
    done = run(*check, *FILES, ROOT / ".github/dependabot.yml")
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        "on: push\njobs:\n  a:\n    runs-on: x\n    steps: [{run: 'echo ${{ github.head_ref }}'}]\n"
    )
    assert run(*check, wrong).returncode != 0


@pytest.mark.parametrize("file", FILES[1:], ids=lambda file: file.stem)
def test_images_for_cpus_are_made_of_a_pytorch_without_cuda(file: Path) -> None:
    """PyPI's PyTorch has CUDA, beside which docker/gpu_check.py refuses a Horovod without NCCL."""
    assert yaml.safe_load(file.read_text())["env"]["PIP_EXTRA_INDEX_URL"].endswith("/whl/cpu")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_action_is_pinned_by_its_commit_and_may_do_no_more_than_it_needs(file: Path) -> None:
    text = file.read_text()
    uses = re.findall(r"uses: (.*)", text)
    assert uses
    assert [
        use for use in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)
    ] == []
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        assert job["permissions"], "its own"
        assert job["timeout-minutes"] <= 120


def test_each_check_that_is_left_out_has_its_reason() -> None:
    left_out = yaml.safe_load((ROOT / ".checkov.yaml").read_text())["skip-check"]
    table = re.findall(
        r"^\| `(CKV\w+)` \| [^|]+ \| [^|]+ \|$", (ROOT / "docs/security.md").read_text(), re.MULTILINE
    )
    assert left_out == table


def test_one_action_has_one_version() -> None:
    uses = {use for file in FILES for use in re.findall(r"uses: (.*)", file.read_text())}
    assert len({use.partition("@")[0] for use in uses}) == len(uses)


def test_every_make_target_and_module_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text())["jobs"]
    text = "\n".join(file.read_text() for file in FILES)
    named = {*ci["fast"]["strategy"]["matrix"]["target"], *re.findall(r"make (test-[a-z]+)", text)}
    assert named <= targets
    for module in re.findall(r"python -m ([a-z.]+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
    for path in re.findall(r"\bpython (docker/\w+\.py)", text):
        assert (ROOT / path).exists(), path


def test_a_release_pushes_every_image_that_is_built() -> None:
    builder = (ROOT / "docker/build.py").read_text()
    built = {
        f"{name}:1.2.3{suffix}"
        for name, suffix in re.findall(r'f"(dtj-[a-z-]+):\{version\(\)\}([a-z-]*)"', builder)
    }
    release = (ROOT / ".github/workflows/release.yaml").read_text()
    loaded = "".join(f"Loaded image: {image}\n" for image in built)
    program = re.search(r"for image in \$\((sed .*) loaded\.txt\); do", release)
    assert program
    pushed = subprocess.run(
        ["/bin/sh", "-c", program[1]], input=loaded, capture_output=True, text=True, check=True
    )
    assert set(pushed.stdout.split()) == built
    named = set(re.findall(r"steps\.push\.outputs\.(dtj-[a-z-]+)", release))
    assert named <= {image.replace(":1.2.3", "") for image in built}
    titles = re.findall(r'^    "(dtj-[a-z-]+)": ', builder, re.MULTILINE)
    assert set(titles) == {image.partition(":")[0] for image in built}, "each has a title for its label"
