"""Words of `dtj submit` and `dtj run`: lines to paste into a shell, and names of scripts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj.cli.words import Words
from dtj.client.code_job import random_name, read_program

WORD = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(
    lambda word: word not in ("--", "--name") and not word.startswith("--name=")
)


@given(before=st.lists(WORD), after=st.none() | st.lists(WORD), named=st.booleans())
def test_a_printed_line_has_every_word_and_the_new_name(
    before: list[str], after: list[str] | None, named: bool
) -> None:
    old = ["--name", "old"] if named else []
    words = Words("submit", (*old, *before), None if after is None else tuple(after))
    rest = [] if after is None else ["--", *after]
    assert shlex.split(words.line(name="new")) == ["dtj", "submit", *before, "--name", "new", *rest]


@pytest.mark.parametrize(
    ("script", "name"),
    [("train.py", "train"), ("Train_MNIST.v2.py", "train-mnist-v2"), ("01.py", "job-01"), ("ü.py", "job"),
     (f"{'a' * 60}.py", "a" * 40)],
)  # fmt: skip
def test_the_script_gives_the_job_its_name(tmp_path: Path, script: str, name: str) -> None:
    (tmp_path / script).write_text("import horovod")
    assert read_program(tmp_path / script).name == name
    assert re.fullmatch(rf"{name}-[b-z2-9]{{5}}", random_name(name))
