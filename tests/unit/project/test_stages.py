"""The run of all stages of `make test`: a failure is shown, other stages continue, and the times are kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import processor_time, stages
from tests.stage_times import SLOWEST, budget_text, failures, growth, read_budget, report_file, table, timed
from tests.stages import Run, Stage


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the logs of this module's stages go."""
    monkeypatch.setattr(stages, "FOLDER", tmp_path)
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    monkeypatch.setattr(stages, "timed", lambda name, used: timed(name, tmp_path, used))
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
    assert shown[0].split() == ["41.5", "s", "0.0", "unit", "tests.unit.a::t41"]


def test_what_a_stage_and_its_tests_took_stands_beside_the_budget(folder: Path) -> None:
    used = iter([10.0, 95.4])
    with timed("unit", folder, lambda: next(used)):
        pass
    processor = {"as before": 4.0, "grew": 9.5, "new": 3.0, "new and quick": 0.5}
    report_file("unit", folder).write_text(
        "<testsuites><testsuite>"
        + "".join(
            f'<testcase classname="a" name="{name}" time="1"><properties>'
            f'<property name="processor" value="{seconds}"/></properties></testcase>'
            for name, seconds in processor.items()
        )
        + "</testsuite></testsuites>"
    )
    budget = folder / "times.md"
    budget.write_text(
        "| stage | processor |\n| --- | --- |\n| `unit` | 70 | 30 |\n\n"
        "| test | processor |\n| --- | --- |\n| `a::as before` | 4.0 |\n| `a::grew` | 2.5 |\n"
    )

    assert table(folder, budget).splitlines()[2].split()[-2:] == ["85", "70"]
    shown = [line.split() for line in growth(folder, budget)[2:]]
    assert [(words[0], " ".join(words[3:])) for words in shown] == [
        ("+7.0", "unit a::grew"),
        ("+1.0", "unit a::new"),
    ]

    # The file that `make times` writes is read back: nothing has grown then.
    budget.write_text(budget_text(folder))
    assert read_budget(budget) == ({"unit": 85.0}, {"a::as before": 4.0, "a::grew": 9.5, "a::new": 3.0})
    assert growth(folder, budget)[2:] == []


@pytest.mark.skipif(not os.access(processor_time.ROOT, os.W_OK), reason="needs root and a cgroup (v1)")
def test_the_seconds_of_a_process_that_nobody_waits_for_count(folder: Path) -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    leaves = (
        f"import os\nif os.fork() == 0:\n    os.setsid()\n    exec({busy!r})\n    open('ended', 'w').close()"
    )
    run = Run()
    run.lane([stage("leaves", leaves)])
    deadline = time.monotonic() + 60
    while not (folder / "ended").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (processor_time.of_stage("leaves") or 0) >= 0.3
    until_gone = time.monotonic() + 60
    while (processor_time.ROOT / "make-test-leaves").exists() and time.monotonic() < until_gone:
        processor_time.remove("leaves")
    assert processor_time.of_stage("leaves") is None


@pytest.mark.skipif(not os.access(processor_time.CPU, os.W_OK), reason="needs root and a cgroup (v1)")
def test_a_preferred_command_has_more_weight_and_what_outlives_it_has_not() -> None:
    shows = "grep :cpu: /proc/self/cgroup; sleep 60 > /dev/null 2>&1 & echo $!"
    with processor_time.preferred("shows", ["sh", "-c", shows]) as command:
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        group = processor_time.CPU / "make-test-shows"
        assert shown[0].endswith(":cpu:/make-test-shows")
        assert (group / "cpu.shares").read_text().strip() == str(processor_time.PREFERRED)
    try:
        assert ":cpu:/\n" in Path(f"/proc/{shown[1]}/cgroup").read_text()
        assert not group.exists()
    finally:
        os.kill(int(shown[1]), signal.SIGKILL)


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
