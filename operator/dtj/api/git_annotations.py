"""The annotations of a job that name the commit of its code. The operator validates them: users may edit them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from dtj.api.identity import GROUP
from dtj_trainer.contract.history import GitState

ANNOTATION_COMMIT = f"{GROUP}/git-commit"
ANNOTATION_BRANCH = f"{GROUP}/git-branch"
ANNOTATION_REMOTE = f"{GROUP}/git-remote"
ANNOTATION_MODIFIED = f"{GROUP}/git-modified"
# The hash of a commit: 40 digits of SHA-1, or 64 digits of SHA-256 in a repository of git's newer object format.
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SCP = re.compile(r"[\w.+-]+@[\w.-]+:(?!//)[^\s@]+")
_LONGEST = 255
"""The largest number of characters in the name of a branch or the address of a remote."""


def git_annotations(state: GitState | None) -> dict[str, str]:
    """Return the annotations of a job whose code has this state; none for code outside of a repository."""
    if state is None:
        return {}
    annotations = {ANNOTATION_COMMIT: state["commit"], ANNOTATION_MODIFIED: str(state["modified"]).lower()}
    named = {ANNOTATION_BRANCH: _text(state.get("branch")), ANNOTATION_REMOTE: _text(state.get("remote"))}
    return annotations | {name: value for name, value in named.items() if value}


def git_state_of(annotations: Mapping[str, object]) -> GitState | None:
    """Return the state that annotations name. A value that `git_annotations` never returns counts as absent."""
    commit = annotations.get(ANNOTATION_COMMIT)
    if not (isinstance(commit, str) and _COMMIT.fullmatch(commit)):
        return None
    state: GitState = {"commit": commit, "modified": annotations.get(ANNOTATION_MODIFIED) != "false"}
    if branch := _text(annotations.get(ANNOTATION_BRANCH)):
        state["branch"] = branch
    if remote := without_credentials(_text(annotations.get(ANNOTATION_REMOTE))):
        state["remote"] = remote
    return state


def without_credentials(url: str) -> str | None:
    """Return the URL of a remote without user, password, query and fragment; None for a path of this machine."""
    if _SCP.fullmatch(url):
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    host = parts.netloc.rpartition("@")[2]
    # `/`, `?` or `#` in a password ends the host for the parser. The rest of the password and its @ are then in the
    # path, the query or the fragment, and must not be shown.
    if not host or parts.scheme == "file" or "@" in f"{parts.path}{parts.query}{parts.fragment}":
        return None
    return f"{parts.scheme}://{host}{parts.path}"


def code_words(digest: str, state: GitState | None) -> str:
    """Return the code of a job in words: the digest, and the commit if one is known."""
    if state is None:
        return digest
    branch = f" of {state['branch']}" if "branch" in state else ""
    changes = ", with changes" if state["modified"] else ""
    return f"{digest}, commit {state['commit'][:12]}{branch}{changes}"


def _text(value: object) -> str:
    """Return a value if the value is a short printable string, else an empty string."""
    return value if isinstance(value, str) and len(value) <= _LONGEST and value.isprintable() else ""
