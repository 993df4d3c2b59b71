"""The reports of `dtj ui`: jobs compared, a job as one file, and the options of past jobs."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from tests.trainer.conftest import ObjectStore
from tests.trainer.ui_jobs import HOSTILE, SECRET_VALUE, Ui, served

from dtj.api.masking import MASK

REPORT = "/api/v1/report?job=ml/running&job=ml/succeeded"
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, running_object_store: ObjectStore) -> Iterator[Ui]:
    with served(tmp_path_factory.mktemp("ui"), running_object_store) as running:
        yield running


def uid_of(ui: Ui, name: str) -> str:
    return str(next(row["uid"] for row in ui("/api/v1/past").json if row["name"] == name))


def test_compared_jobs_have_the_tables_and_pictures_of_the_command(ui: Ui) -> None:
    answer = ui(REPORT).json
    runs = next(table for table in answer["tables"] if table["title"] == "Runs")
    rate, accuracy = (runs["headings"].index(name) for name in ("examples/s", "accuracy %"))
    assert [row[0] for row in runs["rows"]] == ["running", "succeeded"]
    assert float(runs["rows"][0][rate].split()[0]) > 100
    # A run that has not ended has no accuracy yet.
    assert [row[accuracy] for row in runs["rows"]] == ["–", "95.00"]
    assert [picture["name"] for picture in answer["pictures"]] == ["time-and-accuracy.png", "over-time.png"]
    assert all(base64.b64decode(picture["png"]).startswith(PNG) for picture in answer["pictures"])
    assert all(picture["alternative"] for picture in answer["pictures"])
    assert answer["command"] == "dtj report running succeeded --format html -n ml"
    assert answer["leftOut"] == []


def test_a_baseline_a_price_and_groups_are_those_of_the_command(ui: Ui) -> None:
    answer = ui(f"{REPORT}&baseline=running&price=%240.90/h&group_by=workers").json
    headings = {table["title"]: table["headings"] for table in answer["tables"]}
    assert {"cost ($)", "speed-up", "efficiency"} <= set(headings["Runs"])
    assert "speed-up" in headings["Groups"]
    assert "speed-up.png" in [picture["name"] for picture in answer["pictures"]]
    assert answer["baselines"] == ["running", "succeeded", "workers 2"]
    assert "--baseline running --group-by workers --price '$0.90/h'" in answer["command"]


def test_a_price_is_that_of_roles_as_in_the_command(ui: Ui) -> None:
    answer = ui(f"{REPORT}&price=worker%3D%240.90,ps%3D0.023").json
    assert "--price 'worker=$0.90,ps=0.023'" in answer["command"]
    assert any(note.startswith("Cost: ") and "worker $0.9, ps $0.023." in note for note in answer["notes"])


def test_past_jobs_stand_beside_present_ones(ui: Ui) -> None:
    past = uid_of(ui, "gone")
    answer = ui(f"{REPORT}&job=ml/gone/{past}&job=ml/failed").json
    runs = next(table for table in answer["tables"] if table["title"] == "Runs")
    assert [row[0] for row in runs["rows"]] == ["running", "succeeded", "gone"]
    assert re.search(r"running succeeded s3://\S+/ml/gone-\S+ failed --format html", answer["command"])
    # The job that failed before its first row has no figures, and is told.
    assert [each["job"] for each in answer["leftOut"]] == ["failed"]
    assert "metrics.jsonl" in answer["leftOut"][0]["reason"]


def test_no_job_with_metrics_is_no_fault(ui: Ui) -> None:
    answer = ui("/api/v1/report?job=ml/failed&job=ml/suspended").json
    assert (answer["tables"], answer["pictures"]) == ([], [])
    assert [each["job"] for each in answer["leftOut"]] == ["failed", "suspended"]


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("", 422, "job"),
        ("?" + "&".join(f"job=ml/j{n}" for n in range(21)), 422, "job"),
        ("?job=running", 422, "does not name a job"),
        (f"?job={quote('ml/../../secrets')}", 422, "does not name a job"),
        (f"?job=ml/{quote(HOSTILE, safe='')}", 422, "does not name a job"),
        ("?job=ml/running/x%00y", 422, "does not name a job"),
        ("?job=ml/nothing", 404, "nothing"),
        ("?job=ml/running&baseline=none", 404, "no run or group is called none"),
        ("?job=ml/running&group_by=colour", 422, "no run has the field colour"),
        ("?job=ml/running&price=much", 422, "is not a price"),
        ("?job=ml/running&price=workers%3D1", 422, "does not name a role"),
        (f"?job=ml/running&price={'9' * 301}", 422, "price"),
        ("?job=ml/running&" + "&".join("group_by=model" for _ in range(11)), 422, "group_by"),
        (f"?job=ml/running&baseline={'x' * 301}", 422, "baseline"),
    ],
)
def test_wrong_reports_are_told(ui: Ui, query: str, status: int, said: str) -> None:
    for path in ("/api/v1/report", "/api/v1/report.html"):
        answer = ui(path + query)
        assert (answer.status, said in answer.json["message"]) == (status, True), answer.body


@pytest.mark.parametrize(
    "path", [REPORT.replace("report?", "report.html?"), "/api/v1/jobs/ml/running/page.html"]
)
def test_files_to_send_run_nothing_and_name_no_secret(ui: Ui, path: str) -> None:
    answer = ui(path)
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
    assert headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    text = answer.body.decode()
    assert "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-" in text
    assert "<script" not in text
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert SECRET_VALUE not in text
    assert ui(path, Authorization="").status == 401


def test_a_job_in_one_file_tells_all_about_it(ui: Ui) -> None:
    text = ui("/api/v1/jobs/ml/running/page.html").body.decode()
    assert "Running. The job trains: step 120/200, 60.0%, ETA 90s" in text
    assert "Dashed vertical lines: restarts, at step 60, 120." in text
    assert text.count("<svg") > 3
    assert '<th scope="row">--lr</th><td>0.1</td>' in text
    assert f"value: {MASK}" in text
    failed = ui("/api/v1/jobs/ml/failed/page.html").body.decode()
    assert re.search(r"There are no metrics of the program: s3://\S+/metrics.jsonl does not exist", failed)
    assert (
        "OutOfMemory: rank 1 in failed-worker-1: node-2: the container had too little memory &lt;img"
        in failed
    )
    assert HOSTILE not in failed


def test_a_past_job_in_one_file_is_as_the_bucket_recorded_it(ui: Ui) -> None:
    gone = ui(f"/api/v1/jobs/ml/gone/page.html?uid={uid_of(ui, 'gone')}").body.decode()
    assert "Failed. The job failed: rank 1 in worker-1: ApplicationError: ValueError: loss is nan" in gone
    lost = ui(f"/api/v1/jobs/ml/lost/page.html?uid={uid_of(ui, 'lost')}").body.decode()
    assert "no end recorded; last sign 2026-11-21T12:00:00Z" in lost


def test_past_jobs_have_the_options_that_their_job_files_had(ui: Ui) -> None:
    found = {each["uid"]: each["arguments"] for each in ui("/api/v1/past/options").json}
    assert set(found) == {row["uid"] for row in ui("/api/v1/past").json}
    assert found[uid_of(ui, "gone")] == {"lr": "0.5", "api-key": MASK}
    assert found[uid_of(ui, "lost")] == {"lr": "0.5", "api-key": MASK}
    assert len(ui("/api/v1/past/options?limit=1").json) == 1
    for limit in ("0", "1001", "many"):
        assert ui(f"/api/v1/past/options?limit={limit}").status == 422


def test_the_past_asks_the_cluster_only_for_the_one_job(ui: Ui) -> None:
    """DTJ_ARTIFACTS names the history: the present jobs are not listed for theirs."""
    job = f"/api/v1/jobs/ml/gone?uid={uid_of(ui, 'gone')}"
    before = len(ui.cluster.paths)
    assert ui(job).status == 200
    asked = [path.partition("?")[0] for path in ui.cluster.paths[before:]]
    assert asked
    assert {path.rpartition("/")[2] for path in asked} == {"gone"}
