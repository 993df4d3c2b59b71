"""Hides passwords and tokens in specs and command lines that dtj shows or writes to files. All functions are pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dtj.api.job import Manifest

MASK = "(hidden)"
_SECRET = re.compile(
    r"(?i)(pass(word|wd|phrase)?|secret|token|(api|access|private)[-_]?key|[-_]key$|credential)"
)
# `--max-tokens` and `--pad-token` are about tokens of a text, not of an account. Their values are not hidden.
_HIDDEN_OPTION = (
    r"(?:(?!(?:pad|eos|bos|unk|cls|sep|mask)[-_]token)[\w.-])*?"
    r"(?:password|passwd|passphrase|secret|token|(?:api|access|private|secret)[-_]?key|credentials?)"
)
_OPTION = re.compile(rf"(?i)--?{_HIDDEN_OPTION}")
_SETTING = re.compile(
    rf"""(?i)(?P<name>(?<![\w.-])(?:--?{_HIDDEN_OPTION}(?:=|\s+(?!-))|{_HIDDEN_OPTION}=))"""
    r"""(?P<value>"[^"]*"|'[^']*'|[^\s"']+)"""
)
_PASSWORD_OF_URL = re.compile(r"(?P<user>(?<![\w+.-])[\w+.-]+://[^\s/:@]+):[^\s/@]+@")
_SERVERS_OWN = {"uid", "generation", "creationTimestamp", "deletionTimestamp", "resourceVersion"}
_WORDS = ("command", "args")


def masked(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a job without values of variables, and of options, whose names look secret.

    The env and the command lines of the job and of every pod template in it are masked, and passwords in URLs.
    Values from Secrets are references, and stay.
    """
    result = _masked(manifest)
    assert isinstance(result, dict)
    return result


def masked_job(manifest: Mapping[str, Any]) -> Manifest:
    """Return the job as one would write it: masked, without what the API server and the operator set."""
    job = masked(manifest)
    job.pop("status", None)
    metadata = job.get("metadata")
    if isinstance(metadata, dict):
        job["metadata"] = {
            key: value
            for key, value in metadata.items()
            if key not in _SERVERS_OWN and value not in ({}, None)
        }
    return job


def masked_words(words: Sequence[Any]) -> list[Any]:
    """Return the words of a command line without the values of options whose names look secret."""
    return list(_masked_words(words))


def _masked_words(words: Sequence[Any]) -> Iterator[Any]:
    after_secret = False
    for word in words:
        if not isinstance(word, str):
            yield word
        elif after_secret and not word.startswith("-"):
            yield MASK
        else:
            yield _masked_text(_SETTING.sub(rf"\g<name>{MASK}", word))
        after_secret = isinstance(word, str) and _OPTION.fullmatch(word) is not None


def _masked(value: Any) -> Any:
    if isinstance(value, Mapping):
        hidden = isinstance(value.get("value"), str) and _looks_secret(value.get("name"))
        return {
            key: MASK if hidden and key == "value" else _masked_field(key, inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_masked(inner) for inner in value]
    return _masked_text(value) if isinstance(value, str) else value


def _masked_field(key: str, value: Any) -> Any:
    if key in _WORDS and isinstance(value, list):
        return masked_words(value)
    masked_value = _masked(value)
    if key == "annotations" and isinstance(masked_value, dict):
        # kubectl stores a copy of the whole manifest in this annotation. The values in the copy are not masked.
        masked_value.pop("kubectl.kubernetes.io/last-applied-configuration", None)
    return masked_value


def _masked_text(text: str) -> str:
    return _PASSWORD_OF_URL.sub(rf"\g<user>:{MASK}@", text)


def _looks_secret(name: Any) -> bool:
    return isinstance(name, str) and _SECRET.search(name) is not None


# Functions that read the options of a program's command line. All functions are pure.


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Return the options `--name value`, `--name=value` and `--flag` of a command line, by name.

    Values of options whose names look secret are hidden.
    """
    found: dict[str, str] = {}
    shown = masked_words(words)
    for place, word in enumerate(shown):
        if not word.startswith("--") or word == "--":
            continue
        name, equals, value = word[2:].partition("=")
        following = shown[place + 1] if place + 1 < len(shown) else "--"
        found[name] = value if equals else "" if following.startswith("--") else following
    return found


def options_of_manifest(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of the program of a job. A malformed part of the manifest counts as empty."""
    spec = manifest.get("spec")
    parts = [spec.get(name) for name in ("command", "args")] if isinstance(spec, Mapping) else []
    return options_of([str(word) for part in parts if isinstance(part, list) for word in part])
