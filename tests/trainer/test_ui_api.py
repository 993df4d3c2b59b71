"""The API of `dtj ui`: what it says of jobs, what it changes, and whom it refuses."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from copy import deepcopy

import pytest
from tests.trainer.conftest import ObjectStore
from tests.trainer.ui_jobs import HOSTILE, SECRET_VALUE, Ui, served

from dtj.api.masking import MASK


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, running_object_store: ObjectStore) -> Iterator[Ui]:
    with served(tmp_path_factory.mktemp("ui"), running_object_store) as running:
        yield running


def test_each_job_is_told_in_a_sentence(ui: Ui) -> None:
    rows = {row["name"]: row for row in ui("/api/v1/jobs").json}
    assert {name: row["sentence"] for name, row in rows.items()} == {
        "running": "The job trains: step 120/200, 60.0%, ETA 90s",
        "succeeded": "The job succeeded: accuracy 0.95",
        "failed": "The job failed: rank 1 in failed-worker-1: OutOfMemory: "
        f"the container had too little memory {HOSTILE} (after 3 restarts)",
        "unschedulable": "The job waits to start: 0/3 nodes are available: 3 Insufficient gpu",
        "suspended": "The job is suspended: suspended by the user",
    }
    assert rows["running"]["arguments"] == {"lr": "0.1", "epochs": "3", "note": "running"}


def test_a_job_has_its_pods_and_the_commands_of_the_buttons(ui: Ui) -> None:
    view = ui("/api/v1/jobs/ml/running").json
    assert [(pod["name"], pod["ranks"], pod["node"]) for pod in view["pods"]] == [
        ("running-worker-0", "0", "node-1"),
        ("running-worker-1", "1", "node-1"),
    ]
    commands = {each["action"]: each["command"] for each in view["commands"]}
    assert commands["suspend"] == "dtj suspend running -n ml"
    served_model = ui("/api/v1/jobs/ml/succeeded").json
    assert any(each["command"].startswith("dtj serve succeeded -n ml") for each in served_model["commands"])


def test_a_value_that_looks_secret_is_nowhere(ui: Ui) -> None:
    for path in ("/api/v1/jobs", "/api/v1/jobs/ml/running", "/api/v1/jobs/ml/running/again"):
        assert SECRET_VALUE not in ui(path).body.decode()
    assert "OMP_NUM_THREADS" in ui("/api/v1/jobs/ml/running").json["yaml"]


def test_a_hidden_value_can_not_become_the_value_of_a_new_job(ui: Ui) -> None:
    text = ui("/api/v1/jobs/ml/running/again").json["text"]
    line = 1 + next(n for n, content in enumerate(text.splitlines()) if MASK in content)
    faults = ui("/api/v1/validate", "POST", {"text": text}).json["faults"]
    assert [(fault["line"], fault["field"]) for fault in faults] == [(line, "value")]
    refused = ui("/api/v1/jobs", "POST", {"text": text})
    assert (refused.status, refused.json["message"].partition(":")[0]) == (422, f"line {line}")
    written = text.replace(MASK, "another")
    made = ui("/api/v1/jobs", "POST", {"text": written})
    assert (made.status, made.json["name"]) == (201, "running-2")
    assert ui.cluster.jobs["running-2"]["spec"]["env"][0] == {"name": "API_TOKEN", "value": "another"}
    assert ui("/api/v1/jobs/ml/running-2", "DELETE").status == 200


def test_another_run_goes_on_from_the_checkpoint(ui: Ui) -> None:
    text = ui("/api/v1/jobs/ml/suspended/again?resume=true").json["text"]
    prefix = ui("/api/v1/jobs/ml/suspended").json["artifacts"]["uri"]
    assert "resume: FromURI" in text
    assert f"resumeUri: {prefix}" in text
    assert "suspend:" not in text


def test_faults_of_a_job_file_have_their_lines(ui: Ui) -> None:
    template = ui("/api/v1/templates/Horovod").json["text"]
    good = ui("/api/v1/validate", "POST", {"text": template}).json
    assert good["faults"] == []
    assert good["sentence"].startswith("training is valid: Horovod with 3 pods")
    faulty = ui(
        "/api/v1/validate", "POST", {"text": template.replace("strategy: Horovod", "strategy: Ring")}
    ).json
    line = 1 + next(n for n, content in enumerate(template.splitlines()) if "strategy: Horovod" in content)
    assert [(fault["line"], fault["field"]) for fault in faulty["faults"]] == [(line, "spec.strategy")]
    assert ui("/api/v1/validate", "POST", {"text": "a: [b"}).json["faults"][0]["line"] == 1


def test_actions_change_the_job(ui: Ui) -> None:
    spec = ui.cluster.jobs["running"]["spec"]
    assert ui("/api/v1/jobs/ml/running/suspend", "POST").status == 200
    assert ui.cluster.jobs["running"]["spec"]["runPolicy"]["suspend"] is True
    assert ui("/api/v1/jobs/ml/running/resume", "POST").status == 200
    assert ui.cluster.jobs["running"]["spec"].get("runPolicy", {}).get("suspend") is False
    assert spec["replicaSpecs"] == ui.cluster.jobs["running"]["spec"]["replicaSpecs"]


def test_actions_leave_another_job_of_the_name_alone(ui: Ui) -> None:
    job, before = "/api/v1/jobs/ml/running", deepcopy(ui.cluster.jobs["running"])
    for method, path, body in (
        ("POST", f"{job}/suspend", None),
        ("POST", f"{job}/resume", None),
        ("POST", f"{job}/scale", {"replicas": {"worker": 3}}),
        ("DELETE", job, None),
    ):
        refused = ui(f"{path}?uid=of-an-earlier-job", method, body)
        assert (refused.status, "another job has its name" in refused.json["message"]) == (404, True), (
            refused.json
        )
    assert ui.cluster.jobs["running"] == before


def test_curves_have_the_restarts_and_the_peaks(ui: Ui) -> None:
    curves = ui("/api/v1/jobs/ml/running/curves").json
    by_name = {curve["name"]: curve for curve in curves["curves"]}
    assert list(by_name) == ["train loss", "test accuracy", "train examplesPerSecond"]
    assert by_name["train loss"]["values"][:2] == [2.0, 1.0]
    assert curves["restarts"] == [60, 120]


def test_the_output_of_an_ended_attempt_is_searched(ui: Ui) -> None:
    logs = ui("/api/v1/jobs/ml/succeeded/logs?search=ONERROR").json
    assert logs["lines"] == [["rank 1", HOSTILE, None]]
    assert [line[0] for line in ui("/api/v1/jobs/ml/succeeded/logs?rank=0").json["lines"]] == ["rank 0"]


def test_artifacts_come_as_attachments_that_run_nothing(ui: Ui) -> None:
    keys = [file["key"] for file in ui("/api/v1/jobs/ml/running/artifacts").json]
    assert keys == ["logs/attempt-1/launcher-0.log", "metrics.jsonl", "model/model.html"]
    answer = ui("/api/v1/jobs/ml/running/artifacts/model/model.html")
    assert answer.body == HOSTILE.encode()
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert headers["content-disposition"] == "attachment; filename*=UTF-8''model.html"
    assert headers["content-type"] == "application/octet-stream"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("sandbox")


@pytest.mark.parametrize(
    "key",
    [
        "..%2F..%2Fsecret",
        "model/../../x",
        "%2e%2e/x",
        "model",
        "nothing",
        "%00",
        "model%2F..%2Fmetrics.jsonl",
    ],
)
def test_a_key_leads_out_of_nothing(ui: Ui, key: str) -> None:
    assert ui(f"/api/v1/jobs/ml/running/artifacts/{key}").status in (404, 502)


def test_unknown_jobs_and_wrong_requests_are_told(ui: Ui) -> None:
    missing = ui("/api/v1/jobs/ml/nothing")
    assert (missing.status, "nothing" in missing.json["message"]) == (404, True)
    assert ui("/api/v1/jobs/ml/running/scale", "POST", {"replicas": {"ps": 2}}).status == 422
    assert ui("/api/v1/jobs/ml/running/scale", "POST", {}).status == 422
    assert ui("/api/v1/jobs/ml/running/logs?rank=many").status == 422


def test_past_jobs_are_as_the_bucket_recorded_them(ui: Ui) -> None:
    rows = ui("/api/v1/past").json
    assert [(row["name"], row["phase"], row["past"]) for row in rows] == [
        ("gone", "Failed", True),
        ("lost", "Unknown", True),
        ("twice", "Succeeded", True),
        ("twice", "Failed", True),
    ]
    assert (
        rows[0]["sentence"] == "The job failed: rank 1 in worker-1: ApplicationError: ValueError: loss is nan"
    )
    assert rows[1]["sentence"] == "no end recorded; last sign 2026-11-21T12:00:00Z"
    older = ui(f"/api/v1/jobs/ml/twice?uid={rows[3]['uid']}").json
    assert (older["row"]["phase"], older["failure"]["message"]) == ("Failed", "ValueError: loss is nan")
    assert older["note"].startswith("read from the bucket: the job's end was recorded by the pod record")
    assert {each["action"] for each in older["commands"]} == {"logs", "status", "artifacts", "page"}
    assert all("/ml/twice-" in each["command"] for each in older["commands"])


def test_past_jobs_have_curves_output_and_files(ui: Ui) -> None:
    uid = ui("/api/v1/past").json[0]["uid"]
    job = "/api/v1/jobs/ml/gone"
    assert ui(f"{job}/curves?uid={uid}").json["curves"][0]["values"] == [0.91]
    assert ui(f"{job}/logs?uid={uid}").json["lines"] == [["rank 0", "the last line", None]]
    assert ui(f"{job}/artifacts/metrics.jsonl?uid={uid}").status == 200
    assert "name: gone-2" in ui(f"{job}/again?uid={uid}").json["text"]
    # Without a uid, the newest job of the name that is nowhere else.
    assert ui("/api/v1/jobs/ml/twice").json["row"]["phase"] == "Succeeded"


def test_the_past_does_not_need_the_cluster(ui: Ui) -> None:
    ui.cluster.tokens = set()
    try:
        assert [row["name"] for row in ui("/api/v1/past").json] == ["gone", "lost", "twice", "twice"]
        assert ui("/api/v1/jobs/ml/gone").json["failure"]["class"] == "ApplicationError"
        assert ui("/api/v1/jobs/ml/running").status == 502
    finally:
        ui.cluster.tokens = {"a-token"}


def test_a_user_without_rights_sees_and_does_nothing(ui: Ui) -> None:
    ui.cluster.tokens = set()
    try:
        for path, method in (("/api/v1/jobs", "GET"), ("/api/v1/jobs/ml/running", "DELETE")):
            answer = ui(path, method)
            assert answer.status == 502
            assert "does not accept your credentials" in answer.json["message"]
    finally:
        ui.cluster.tokens = {"a-token"}
    assert "running" in ui.cluster.jobs


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Basic x", "bearer"])
def test_without_the_token_nothing_is_told(ui: Ui, header: str) -> None:
    answer = ui("/api/v1/jobs", Authorization=header)
    assert answer.status == 401
    assert "running" not in answer.body.decode()


@pytest.mark.parametrize("path", ["/", "/page.js", "/api/v1/jobs"])
def test_a_name_that_resolves_to_loopback_is_refused(ui: Ui, path: str) -> None:
    assert ui(path, Host="evil.example:80").status == 421
    assert ui(path, Host="127.0.0.1").status == 421


def test_another_page_is_refused(ui: Ui) -> None:
    assert ui("/api/v1/jobs/ml/running", "DELETE", Origin="http://evil.example").status == 403
    assert ui("/api/v1/jobs", Origin="null").status == 403
    assert "running" in ui.cluster.jobs
    assert not {name for name in ui("/api/v1/jobs").headers if name.lower().startswith("access-control")}


def test_every_answer_keeps_the_browser_strict(ui: Ui) -> None:
    for path in ("/", "/page.js", "/api/v1/jobs", "/nothing"):
        headers = {name.lower(): value for name, value in ui(path).headers.items()}
        assert "require-trusted-types-for 'script'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


def test_two_hosts_are_none(ui: Ui) -> None:
    connection = http.client.HTTPConnection(*ui.origin.removeprefix("http://").split(":"))
    try:
        connection.putrequest("GET", "/", skip_host=True)
        for host in (ui.origin.removeprefix("http://"), "evil.example"):
            connection.putheader("Host", host)
        connection.endheaders()
        assert connection.getresponse().status in (400, 421)
    finally:
        connection.close()


def test_the_api_describes_itself(ui: Ui) -> None:
    described = ui("/api/v1/openapi.json").json
    assert "/api/v1/jobs/{namespace}/{name}" in described["paths"]
    assert ui("/api/v1/openapi.json", Authorization="").status == 401
