"""What `tests.advisories` makes of outputs that pip-audit 2.10 and npm 11 printed (`advisories/`), and of others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import advisories
from tests.advisories import (
    NPM_CANARY,
    PIP_CANARY,
    npm_faults,
    page_faults,
    pins_of,
    pip_faults,
    python_faults,
)

RECORDED = Path(__file__).parent / "advisories"
PINS = {"requests": "2.19.0", "notthere-dtj-x": "1.0"}


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.json").read_text()


def audited(pins: Mapping[str, str], *advised: str) -> str:
    """Return the JSON of pip-audit that has asked for each package, and found an advisory on some."""
    advisory = {
        "id": "PYSEC-2018-28",
        "fix_versions": ["2.20.0"],
        "aliases": [],
        "description": "leaks a header",
    }
    dependencies = [
        {"name": name, "version": version, "vulns": [advisory] if name in advised else []}
        for name, version in pins.items()
    ]
    return json.dumps({"dependencies": dependencies, "fixes": []})


def npm_report(*names: str) -> str:
    found = json.loads(recorded("npm-found"))
    found["vulnerabilities"] = dict.fromkeys(names, found["vulnerabilities"]["preact"])
    return json.dumps(found)


def test_pip_audit_that_reached_nobody_ends_with_0_and_is_a_fault() -> None:
    """The index answered 404 for each package: `No known vulnerabilities found`."""
    assert [*pip_faults(recorded("pip-unreached"), PINS)] == [
        f"{name} {version} was not audited: Dependency not found on PyPI and could not be audited: {name} ({version})"
        for name, version in PINS.items()
    ]


def test_advisories_on_python_packages_are_told_with_the_version_to_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [*pip_faults(audited(PINS), PINS)] == []
    output = audited(PINS, "requests")
    assert [*pip_faults(output, PINS)] == ["requests 2.19.0: PYSEC-2018-28, fixed in 2.20.0"]
    monkeypatch.setattr(advisories, "ACCEPTED", {"PYSEC-2018-28": "dtj sends no such header"})
    assert [*pip_faults(output, PINS)] == []


@pytest.mark.parametrize("output", ["", "Traceback", "[]", "{}", audited({})])
def test_a_pin_of_which_pip_audit_says_nothing_is_a_fault(output: str) -> None:
    assert [*pip_faults(output, {"a": "1"})] == ["a 1 was not audited: pip-audit says nothing of it"]


def test_npm_that_did_not_ask_is_a_fault() -> None:
    (fault,) = npm_faults(recorded("npm-refused"))
    assert fault.startswith("npm audit has made no report: 405 Method Not Allowed")
    for output in ("", "{}", "[]", "npm error"):
        assert [*npm_faults(output)], output


def test_advisories_on_the_page_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (fault,) = npm_faults(recorded("npm-found"))
    assert fault == "preact <=99.0.0: https://github.com/advisories/GHSA-aaaa-bbbb-cccc (high), An example"
    monkeypatch.setattr(
        advisories, "ACCEPTED", {"https://github.com/advisories/GHSA-aaaa-bbbb-cccc": "not used"}
    )
    assert [*npm_faults(recorded("npm-found"))] == []


def test_the_canaries_show_that_somebody_was_asked() -> None:
    """`npm audit --offline` ends with 0 and a report without advisories."""
    offline = recorded("npm-offline")
    assert [*npm_faults(offline)] == []
    (fault,) = page_faults(lambda _command, _folder: offline)
    assert fault == "npm knows no advisory on lodash 4.17.15: it has not reached its service"
    asked: list[Path] = []

    def npm(command: tuple[str, ...], folder: Path) -> str:
        asked.append(folder)
        lock = json.loads((folder / "package-lock.json").read_text())
        return npm_report(NPM_CANARY[0]) if f"node_modules/{NPM_CANARY[0]}" in lock["packages"] else offline

    assert [*page_faults(npm)] == []
    assert asked[0] == advisories.PAGE


def test_every_pin_and_the_canary_are_given_to_pip_audit() -> None:
    def pip_audit(command: tuple[str, ...], _: Path, *advised: str) -> str:
        return audited(pins_of(Path(command[-1]).read_text()), *advised)

    def with_canary(command: tuple[str, ...], folder: Path) -> str:
        is_canary = Path(command[-1]) != advisories.PINS
        return pip_audit(command, folder, *PIP_CANARY[:is_canary])

    assert [*python_faults(with_canary)] == []
    faults = [*python_faults(pip_audit)]
    assert faults == [
        f"pip-audit knows no advisory on {' '.join(PIP_CANARY)}: it has not reached its service"
    ]
    pins = pins_of(advisories.PINS.read_text())
    assert len(pins) == sum("==" in line for line in advisories.PINS.read_text().splitlines())


def test_a_run_that_reached_nobody_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tools themselves end with 0."""
    for name, output in (("pip-audit", "pip-unreached"), ("npm", "npm-offline")):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\ncat {RECORDED / output}.json\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SystemExit) as ended:
        advisories.main()
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert "was not audited" in printed
    assert "npm knows no advisory" in printed
