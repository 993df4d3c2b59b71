"""The commit of a folder of code: what Git says, what stays out, and annotations that anybody may write."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj.api.git_annotations import git_annotations, git_state_of, without_credentials
from dtj.client import git_state as asking
from dtj.client.git_state import git_state, parsed_state

COMMIT = "1a" * 20
CLEAN = f"# branch.oid {COMMIT}\0# branch.head main\0# branch.upstream origin/main\0# branch.ab +0 -0\0"
CHANGED = "1 .M N... 100644 100644 100644 aa bb code/train.py\0"


def git(folder: Path, *words: str) -> None:
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)


def test_a_folder_of_a_repository(tmp_path: Path) -> None:
    code = tmp_path / "a folder/code"
    code.mkdir(parents=True)
    (code / "train.py").write_text("1")
    assert git_state(code, ["train.py"]) is None, "no repository"
    git(tmp_path, "init", "--initial-branch=feature/$(x)")
    assert git_state(code, ["train.py"]) is None, "no commit"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    git(tmp_path, "remote", "add", "origin", "https://me:secret@example.com/code.git?token=1")
    clean = git_state(code, ["train.py"])
    assert clean is not None
    assert {**clean, "commit": len(clean["commit"])} == {
        "commit": 40, "modified": False, "branch": "feature/$(x)", "remote": "https://example.com/code.git",
    }  # fmt: skip
    (code / "runs").mkdir()
    (code / "runs/a").write_text("not sent")
    (tmp_path / "beside").write_text("1")
    assert git_state(code, ["train.py"]) == clean, "files that stay out do not count"
    assert git_state(code, ["train.py", "runs", "runs/a"]) == clean | {"modified": True}
    (code / "train.py").write_text("2")
    assert git_state(code, ["train.py"]) == clean | {"modified": True}
    git(tmp_path, "checkout", "--detach")
    detached = git_state(code, ["train.py"])
    assert detached is not None
    assert "branch" not in detached
    (code / "train.py").unlink()
    assert git_state(code, ["other.py"]) == detached, "a deleted file"


def test_a_program_that_the_repository_names_does_not_run(tmp_path: Path) -> None:
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    git(tmp_path, "config", "core.fsmonitor", f"touch {tmp_path}/ran")
    assert git_state(tmp_path) is not None
    assert not (tmp_path / "ran").exists()


def test_git_that_is_absent_or_slow_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert git_state(tmp_path) is not None
    monkeypatch.setattr(asking, "_SECONDS", 0.0)
    assert git_state(tmp_path) is None
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None


@pytest.mark.parametrize(
    ("lines", "names", "modified"),
    [
        ("", ["train.py"], False),
        (CHANGED, ["train.py"], True),
        (CHANGED, ["other.py"], False),
        ("1 .D N... 100644 100644 000000 aa bb code/gone.py\0", ["train.py"], True),
        ("? code/new folder/\0", ["new folder/a.py"], True),
        ("? code/new folder/\0", ["new folders/a.py"], False),
        ("u UU N... 100644 100644 100644 100644 aa bb cc code/a b.py\0", ["a b.py"], True),
    ],
)
def test_whether_files_differ(lines: str, names: list[str], modified: bool) -> None:
    state = parsed_state(CLEAN + lines, "code/", "", names)
    assert state == {"commit": COMMIT, "branch": "main", "modified": modified}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://example.com/a/b.git", "https://example.com/a/b.git"),
        ("https://token@example.com/a", "https://example.com/a"),
        ("https://me:p@ss@example.com:8443/a?token=x#y", "https://example.com:8443/a"),
        ("ssh://git:secret@example.com/a", "ssh://example.com/a"),
        ("git@example.com:a/b.git", "git@example.com:a/b.git"),
        ("me:secret@example.com:a/b.git", None),
        ("/home/me/repository", None),
        ("../repository", None),
        ("file:///home/me/repository", None),
        ("https://[broken", None),
    ],
)
def test_a_remote_is_shown_without_credentials(url: str, shown: str | None) -> None:
    assert without_credentials(url) == shown


@given(st.text() | st.from_regex(r"[a:@/?#]*", fullmatch=True), st.sampled_from(["https", "ssh", "git+x"]))
def test_no_password_of_a_url_is_left(password: str, scheme: str) -> None:
    for user in (f"me:secret{password}", f"secret{password}"):
        assert "secret" not in (without_credentials(f"{scheme}://{user}@host/a") or "")


def test_several_remotes() -> None:
    def remote(text: str) -> str | None:
        state = parsed_state(CLEAN, "", text, [])
        assert state is not None
        return state.get("remote")

    two = "remote.a.url\nhttps://a/x\0remote.b.url\nhttps://b/x\0"
    assert remote(two) is None
    assert remote(f"{two}remote.origin.url\nhttps://c/x\0") == "https://c/x"
    assert remote("remote.a.url\nhttps://a/x\0") == "https://a/x"


def test_annotations_come_back() -> None:
    state = parsed_state(CLEAN + CHANGED, "code/", "remote.a.url\nhttps://a/x\0", ["train.py"])
    assert state is not None
    assert git_state_of(git_annotations(state)) == state
    assert git_annotations(None) == {}
    assert git_state_of({}) is None


@pytest.mark.bound(
    "operator",
    "Who may annotate a job",
    "Memory for the Git commit of its code",
    "a commit, a branch and a URL of 255 characters each",
)
@given(
    st.dictionaries(st.sampled_from(["commit", "branch", "remote", "modified"]), st.text() | st.integers())
)
def test_what_anybody_may_annotate_has_few_bytes_and_one_line(values: dict[str, object]) -> None:
    given = {f"dtj.dev/git-{name}": value for name, value in values.items()}
    for commit in (given.get("dtj.dev/git-commit"), COMMIT):
        state = git_state_of(given | {"dtj.dev/git-commit": commit})
        if state is not None:
            assert state["commit"] == commit
            texts = [state.get("branch", ""), state.get("remote", "")]
            assert all(len(text) <= 255 and text.isprintable() for text in texts)
            assert git_state_of(git_annotations(state)) == state


def test_a_long_value_counts_as_absent() -> None:
    given = {"dtj.dev/git-commit": COMMIT, "dtj.dev/git-branch": "b" * 300, "dtj.dev/git-remote": "a\nb"}
    assert git_state_of(given) == {"commit": COMMIT, "modified": True}
    given["dtj.dev/git-remote"] = "https://me:secret@host/a"
    assert git_state_of(given) == {"commit": COMMIT, "modified": True, "remote": "https://host/a"}
