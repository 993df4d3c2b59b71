"""Known advisories on the pinned packages: `python -m tests.advisories` runs `pip-audit` and `npm audit`.

Both tools may end with 0 without having asked anybody: pip-audit skips a package that the index answers with 404, and
npm reports no advisories where it is offline. Two things make such a run fail: every pin has to be audited, and a
canary, an old package with advisories, has to be found. Needs the tools on PATH, and the network.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PINS, PAGE = ROOT / "constraints.txt", ROOT / "operator/page"
ACCEPTED: Mapping[str, str] = {}
"""Why an advisory does not concern dtj, by its id or URL."""
_PIP = ("pip-audit", "--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", "--requirement")
_NPM = ("npm", "audit", "--json", "--package-lock-only")
PIP_CANARY = ("jinja2", "2.10")
NPM_CANARY = ("lodash", "4.17.15")
_SECONDS = 600


def main() -> None:
    """Print what is wrong. Ends with 1 if anything is."""
    wrong = [*python_faults(run), *page_faults(run)]
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(1)
    print(f"no advisory on the {len(pins_of(PINS.read_text()))} packages of {PINS.name} and on the page's")


def run(command: tuple[str, ...], folder: Path) -> str:
    """Return the standard output of a command. Its exit code tells nothing that the output does not."""
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=_SECONDS, check=False
    )
    return done.stdout


Run = Callable[[tuple[str, ...], Path], str]


def pins_of(text: str) -> dict[str, str]:
    """Return the versions of a constraints file by normalised name."""
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}


def python_faults(run: Run) -> Iterator[str]:
    """Yield the faults of the pinned Python packages, and of a look that reached nobody."""
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / "canary.txt"
        canary.write_text("==".join(PIP_CANARY) + "\n")
        yield from pip_faults(run((*_PIP, str(PINS)), ROOT), pins_of(PINS.read_text()))
        if not [*pip_faults(run((*_PIP, str(canary)), ROOT), dict([PIP_CANARY]), only_advisories=True)]:
            yield f"pip-audit knows no advisory on {' '.join(PIP_CANARY)}: it has not reached its service"


def pip_faults(output: str, pins: Mapping[str, str], *, only_advisories: bool = False) -> Iterator[str]:
    """Yield the faults in the JSON of pip-audit. pins: what has to be in it."""
    found = _json(output).get("dependencies")
    dependencies = {each["name"]: each for each in found or [] if isinstance(each, dict) and "name" in each}
    for name, each in dependencies.items():
        for advisory in each.get("vulns") or []:
            if advisory["id"] not in ACCEPTED:
                fixed = ", ".join(advisory.get("fix_versions") or []) or "no version"
                yield f"{name} {each['version']}: {advisory['id']}, fixed in {fixed}"
    if only_advisories:
        return
    for name, version in pins.items():
        each = dependencies.get(name, {})
        if "vulns" not in each:
            yield f"{name} {version} was not audited: {each.get('skip_reason', 'pip-audit says nothing of it')}"


def page_faults(run: Run) -> Iterator[str]:
    """Yield the faults of the page's locked packages, and of a look that reached nobody."""
    yield from npm_faults(run(_NPM, PAGE))
    name, version = NPM_CANARY
    with tempfile.TemporaryDirectory() as folder:
        packages = {
            "": {"name": "canary", "dependencies": {name: version}},
            f"node_modules/{name}": {"version": version},
        }
        about = {"name": "canary", "dependencies": {name: version}}
        Path(folder, "package.json").write_text(json.dumps(about))
        lock = {**about, "lockfileVersion": 3, "requires": True, "packages": packages}
        Path(folder, "package-lock.json").write_text(json.dumps(lock))
        if name not in (_json(run(_NPM, Path(folder))).get("vulnerabilities") or {}):
            yield f"npm knows no advisory on {name} {version}: it has not reached its service"


def npm_faults(output: str) -> Iterator[str]:
    """Yield the faults in the JSON of `npm audit`."""
    report = _json(output)
    if report.get("auditReportVersion") != 2 or not isinstance(report.get("vulnerabilities"), dict):
        yield f"npm audit has made no report: {report.get('message', output[:300] or 'it printed nothing')}"
        return
    for name, each in report["vulnerabilities"].items():
        # A text names another package of the report, through which this one is concerned.
        for advisory in (via for via in each.get("via", []) if isinstance(via, dict)):
            if advisory["url"] not in ACCEPTED:
                yield f"{name} {advisory['range']}: {advisory['url']} ({advisory['severity']}), {advisory['title']}"


def _json(output: str) -> dict[str, Any]:
    try:
        read = json.loads(output)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


if __name__ == "__main__":
    main()
