"""Jobs end in every way, the API server is stopped, and the history says of each job what `dtj status` said.

`make test-ends`. The jobs share the nodes; only the loss of a node comes after the others have ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import nodes, switches
from tests.cluster.ended_jobs import Ending, endings, lost_with_its_node, patch
from tests.cluster.jobs import Job, Namespace, s3_client, until
from tests.cluster.said import (
    OF_THE_OPERATOR,
    Page,
    Parts,
    differences,
    dtj,
    list_parts,
    page,
    page_parts,
    page_row_parts,
    status_parts,
)

pytestmark = [pytest.mark.cluster, pytest.mark.alone, pytest.mark.chaos, pytest.mark.ends]
SECONDS = 300
AT_ONCE = 2
"""Commands at a time: each takes a second of a processor."""


@dataclass(frozen=True)
class Said:
    """What was said of a job while its object existed."""

    parts: Parts
    uid: str
    nodes: dict[str, str]
    """The node of each pod."""


class Jobs:
    """The jobs of the test, and the commands with which it asks for them."""

    def __init__(self, namespace: Namespace, cache: Path) -> None:
        self.namespace = namespace
        self.history = f"s3://training/{namespace.name}"
        endpoint = os.environ["DTJ_TEST_S3_ENDPOINT"]
        self.environment = {
            "AWS_ENDPOINT_URL_S3": endpoint, "DTJ_ARTIFACTS": self.history, "XDG_CACHE_HOME": str(cache),
            "NO_COLOR": "1",
        }  # fmt: skip
        self.nodes: dict[str, dict[str, str]] = {}

    def apply(self, ending: Ending) -> Job:
        """Apply a job, whose history is that of this test."""
        if artifacts := ending.job["spec"].get("artifacts"):
            artifacts["uri"] = self.history
        return self.namespace.apply(ending.job)

    def see(self) -> dict[str, Any]:
        """Return the objects of all jobs by name, and note where their pods are."""
        for pod in self.namespace.list("pods", "dtj.dev/job"):
            if node := pod["spec"].get("nodeName"):
                job = pod["metadata"]["labels"]["dtj.dev/job"]
                self.nodes.setdefault(job, {})[pod["metadata"]["name"]] = node
        return {job["metadata"]["name"]: job for job in self.namespace.list("dtj")}

    def wait_for(self, waited: list[Ending], ui: Page) -> dict[str, Said]:
        """Return what is said of each job, asked after the job has ended and its end is recorded."""
        said: dict[str, Said] = {}

        def all_ended() -> bool:
            there = self.see()
            over = [one for one in waited if one.name not in said and is_over(there[one.name], one)]
            if over:
                listed = dtj("list", "-n", self.namespace.name, environment=self.environment)
                assert listed.code == 0, listed.err
                rows = list_parts(listed.out)
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    found = pool.map(lambda one: self.said(one, rows[one.name], ui), over)
                    said.update(zip([one.name for one in over], found, strict=True))
            return len(said) == len(waited)

        try:
            until("all jobs to end", all_ended, SECONDS, every=1)
        except AssertionError as error:
            left = [Job(self.namespace, one.name).story() for one in waited if one.name not in said]
            raise AssertionError("\n\n".join([str(error), *left])) from None
        return said

    def said(self, ending: Ending, row: Parts, ui: Page) -> Said:
        """Ask for a present job by the other ways. row: that of `dtj list`."""
        status = dtj("status", ending.name, "-n", self.namespace.name, environment=self.environment)
        assert status.code == 0, status.err
        view = ui.get(f"jobs/{self.namespace.name}/{ending.name}")
        assert ending.reason in status.out, f"{ending.name}: {ending.reason} is not in\n{status.out}"
        parts = status_parts(status.out) | row | page_parts(view)
        return Said(parts, view["row"]["uid"], self.nodes.get(ending.name, {}))

    def remove(self, ending: Ending) -> None:
        """See the object go as it is to go."""
        if ending.goes == "TTL":
            patch(Job(self.namespace, ending.name), ttlSecondsAfterFinished=0)
        elif ending.goes == "deleted":
            done = dtj("delete", ending.name, "-n", self.namespace.name, environment=self.environment)
            assert done.code == 0, done.err


def is_over(job: Mapping[str, Any], ending: Ending) -> bool:
    """Return whether the job is as it is to be asked for. Fails at once if it has ended otherwise."""
    status = job.get("status") or {}
    phase, conditions = status.get("phase"), status.get("conditions", [])
    recorded = next((each for each in conditions if each["type"] == "Recorded"), {"reason": ""})
    if phase in ("Succeeded", "Failed"):
        assert phase == ending.phase, f"{ending.name} is {phase}: {conditions} {status.get('failure')}"
    assert recorded["reason"] not in ("RecordRefused", "RecordGivenUp"), f"{ending.name}: {recorded}"
    kept = "artifacts" in job["spec"] and ending.past == "as it was"
    return phase == ending.phase and (not kept or recorded.get("status") == "True")


@pytest.fixture
def jobs(namespace: Namespace, tmp_path: Path) -> Iterator[Jobs]:
    yield Jobs(namespace, tmp_path)
    client = s3_client()
    bucket, folder = "training", f"{namespace.name}/"
    for listed in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=folder):
        for item in listed.get("Contents", []):
            client.delete_object(Bucket=bucket, Key=item["Key"])


def test_the_history_says_of_each_job_what_its_status_said(jobs: Jobs, victim: nodes.Machine) -> None:
    together, nodeless = endings(), lost_with_its_node(victim)
    with page(jobs.namespace.name, jobs.history, jobs.environment) as ui:
        applied = {ending.name: jobs.apply(ending) for ending in together}
        with ThreadPoolExecutor(len(together)) as pool:
            list(pool.map(lambda ending: ending.bring(applied[ending.name]), together))
        said = jobs.wait_for(together, ui)
        for ending in together:
            jobs.remove(ending)
        nodeless.bring(jobs.apply(nodeless))
        said |= jobs.wait_for([nodeless], ui)
        victim.restore()

        every = [*together, nodeless]
        stay = {ending.name for ending in every if ending.goes == "stays"}
        until("the deleted jobs to be gone", lambda: jobs.see().keys() == stay, 180)
        gone = f"dtj.dev/job in ({','.join(one.name for one in every if one.goes != 'stays')})"
        until("their pods to be gone", lambda: not jobs.namespace.list("pods", gone), 180)

        with switches.restored(switches.api_server()) as api_server:
            api_server.stop()
            found = compared(jobs, every, said, ui)
    assert len(every) >= 20
    print(f"{len(every)} jobs: {sum(not lines for lines in found.values())} as they were")
    wrong = [f"{name}\n  " + "\n  ".join(lines) for name, lines in found.items() if lines]
    assert not wrong, "the history differs from what was said:\n" + "\n".join(wrong)


def compared(jobs: Jobs, every: list[Ending], said: Mapping[str, Said], ui: Page) -> dict[str, list[str]]:
    """Return, by job, the lines of what the history says otherwise, without the API server."""
    listed = dtj("list", "--past", "--limit=0", environment=jobs.environment)
    assert listed.code == 0, listed.err
    assert "the cluster can't be asked" in listed.err
    rows = list_parts(listed.out)
    of_page = {row["name"]: row for row in ui.get("past", limit="1000")}
    in_history = {ending.name for ending in every if ending.past != "nothing"}
    assert (set(rows), set(of_page)) == (in_history, in_history)

    def look(ending: Ending) -> list[str]:
        status = dtj("status", ending.name, "--past", environment=jobs.environment)
        if ending.past == "nothing":
            refused = f"has no job {ending.name}" in status.err
            return [] if refused and status.code else [f"dtj status --past: {status.out}{status.err}"]
        assert status.code == 0, status.err
        before, row, in_list = said[ending.name], rows[ending.name], of_page[ending.name]
        view = ui.get(f"jobs/{jobs.namespace.name}/{ending.name}", uid=before.uid)
        now = status_parts(status.out) | row | page_parts(view)
        if ending.past == "no end":
            return without_end(now, status.out, in_list)
        by_pod = "as record recorded" not in status.out
        lines = differences(before.parts, now, OF_THE_OPERATOR if by_pod else set())
        lines += [
            f"list of the page: {line}" for line in differences(now | page_row_parts(in_list), now, set())
        ]
        return lines + wrong_nodes(view, before.nodes, by_pod=by_pod)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip([ending.name for ending in every], pool.map(look, every), strict=True))


def without_end(now: Parts, text: str, row: Mapping[str, Any]) -> list[str]:
    """Return what is wrong in what is said of a job that the user deleted while it trained."""
    expected = {
        "list STATE": now["list STATE"] == "No end recorded",
        "page phase": now["page phase"] == '"Unknown"' == f'"{row["phase"]}"',
        "page sentence": "no end recorded; last sign" in now["page sentence"],
        "dtj status": "no end recorded; last sign" in text,
        "never running": "Running" not in text.partition("\n")[0] and "JobRunning" not in text,
    }
    return [f"{part}: {now.get(part, text)}" for part, right in expected.items() if not right]


def wrong_nodes(view: Mapping[str, Any], seen: Mapping[str, str], *, by_pod: bool) -> list[str]:
    """Return the pods that the record names with another node than they were seen on, or that it lacks."""
    found = {pod["name"]: pod["node"] for pod in view["pods"]}
    wrong = [
        f"{name} was on {seen[name]}, not {node}"
        for name, node in found.items()
        if seen.get(name, node) != node
    ]
    return wrong if found or by_pod or not seen else [*wrong, f"the record lacks the pods {sorted(seen)}"]
