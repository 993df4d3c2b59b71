"""The run of all stages of `make test`: a failure is shown, other stages continue, and the times are kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import stages
from tests.stage_times import SLOWEST, failures, report_file, table, timed
from tests.stages import Run, Stage


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the logs of this module's stages go."""
    monkeypatch.setattr(stages, "FOLDER", tmp_path)
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    monkeypatch.setattr(stages, "timed", lambda name: timed(name, tmp_path))
    return tmp_path


def stage(name: str, code: str, *, ends_all: bool = False) -> Stage:
    return Stage(name, (sys.executable, "-c", code), ends_all)


def test_a_lane_goes_on_after_a_stage_that_failed_and_shows_why(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run()
    run.lane(
        [
            stage("bad", "print('the reason'); exit(3)"),
            stage("good", "print('not shown'); print('== 7 passed in 1s ==')"),
        ]
    )
    assert run.failed == ["bad"]
    shown = capsys.readouterr().out
    assert "the reason" in shown
    assert "bad failed with 3" in shown
    assert "good:\n== 7 passed in 1s ==\n" in shown
    assert "not shown" not in shown


def test_without_a_stage_that_ends_all_nothing_more_is_begun(folder: Path) -> None:
    run = Run()
    run.lane([stage("lint", "exit(1)", ends_all=True), stage("unit", "print('began')")])
    assert run.failed == ["lint"]
    assert not (folder / "unit.log").exists()


def test_the_slowest_tests_are_told_beside_the_stages(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), timed("unit", folder):
        print(1 / 0)
    tests = "".join(
        f'<testcase classname="tests.unit.a" name="t{n}" time="{n}.5"/>' for n in range(SLOWEST + 2)
    )
    report_file("unit", folder).write_text(f"<testsuites><testsuite>{tests}</testsuite></testsuites>")

    lines = table(folder).splitlines()

    assert lines[2].split()[0] == "unit"
    shown = [line for line in lines if "tests.unit.a" in line]
    assert len(shown) == SLOWEST
    assert shown[0].split() == ["41.5", "s", "unit", "tests.unit.a::t41"]


def test_each_failed_test_is_told_in_one_line(folder: Path) -> None:
    report_file("cluster-alone", folder).write_text(
        """<testsuites><testsuite>
        <testcase classname="tests.cluster.a" name="good" time="1"/>
        <testcase classname="tests.cluster.a" name="skipped" time="0"><skipped message="no"/></testcase>
        <testcase classname="tests.cluster.a" name="bad" time="1"><failure message="assert 1 &#10; == 2">x</failure>
        </testcase>
        <testcase classname="tests.cluster.a" name="unset" time="0"><error message="failed on setup">text</error>
        </testcase></testsuite></testsuites>"""
    )
    assert failures(folder) == [
        "cluster-alone  tests.cluster.a::bad  assert 1 == 2",
        "cluster-alone  tests.cluster.a::unset  failed on setup",
    ]
