"""docs/security/growth.md has the rows that tests hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import bounds

TEST = """
@pytest.mark.bound("agent", "A program", "its log", "one " "MiB")
def test_log() -> None: ...
"""


def test_the_page_is_made_from_the_tests() -> None:
    text = bounds.PAGE.read_text()
    assert text == bounds.page(text, bounds.rows()), "run: python -m tests.bounds"


def test_a_row_names_its_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "ROOT", tmp_path)
    (tmp_path / "test_a.py").write_text(TEST)
    (row,) = bounds.rows(tmp_path)
    assert (row.bound, row.test) == ("one MiB", "test_a.py::test_log")
    assert "| its log | A program | one MiB | [test_log](../../test_a.py) |" in bounds.table([row])


@pytest.mark.parametrize(
    ("old", "new", "says"), [('"agent"', '"nobody"', "must be one of"), (', "its log"', "", "four texts")]
)
def test_a_wrong_row_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, says: str
) -> None:
    monkeypatch.setattr(bounds, "ROOT", tmp_path)
    (tmp_path / "test_a.py").write_text(TEST.replace(old, new))
    with pytest.raises(ValueError, match=says):
        bounds.rows(tmp_path)
