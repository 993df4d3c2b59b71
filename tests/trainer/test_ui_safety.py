"""What hostile people try with `dtj ui`: authors of jobs, writers to a bucket, programs on the same machine.

* endpoints of jobs while everything is looked at: no request has the user's own keys
* names that would lead a request to another path
* a user without rights
* requests and files that would fill the memory
* text that a careless page would run, everywhere
"""

from __future__ import annotations

import http.client
import json
import socket
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, suppress
from urllib.parse import quote

import pytest
from aiohttp import web
from tests.browser import chromium, visiting
from tests.trainer.conftest import BUCKET, ObjectStore
from tests.trainer.s3_listener import Listener, listening
from tests.trainer.ui_jobs import HOSTILE, Ui, served
from tests.unit.support.api_answers import refused
from tests.unit.support.jobs import manifest

from dtj.api.job import read_job
from dtj.ui import artifacts
from dtj_trainer.artifacts.store import Store, open_store

OWN, OWN_TOKEN, SECRETS = "OWNKEYOFTHEUSER", "token-of-the-user", "KEYOFTHESECRET"
_OWN_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": OWN,
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_SESSION_TOKEN": OWN_TOKEN,
    "AWS_EC2_METADATA_DISABLED": "true",
    "DTJ_ARTIFACTS": "",
    "AWS_ENDPOINT_URL": "",
    "AWS_ENDPOINT_URL_S3": "",
}


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory, running_object_store: ObjectStore) -> Iterator[Ui]:
    """The page of a user who named no endpoint, and has keys of AWS."""
    folder = tmp_path_factory.mktemp("ui")
    files = {name: str(folder / "none") for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")}
    with served(folder, running_object_store, empty=True, own=_OWN_CREDENTIALS | files) as running:
        yield running


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    with listening() as made:
        yield made


def add(ui: Ui, name: str, endpoint: str, secret: dict[str, str] | None = None) -> str:
    """Add a job with a Secret of its own; its prefix in the bucket."""
    store = {"uri": f"s3://{BUCKET}/hostile", "endpoint": endpoint, "secretName": f"{name}-s3"}
    made = ui.cluster.cluster.add(manifest(name, artifacts=store, args=[f"--{HOSTILE}={HOSTILE}"]))
    if secret:
        data = {key: b64encode(value.encode()).decode() for key, value in secret.items()}
        ui.cluster.cluster.add(
            {"kind": "Secret", "metadata": {"name": f"{name}-s3", "namespace": "ml"}, "data": data}
        )
    return read_job(made).artifacts_uri or ""


def look_at(ui: Ui, name: str) -> list[str]:
    """Open everything about a job, as the page does; what the answers of the bucket's routes say."""
    assert ui("/api/v1/jobs?all_namespaces=true").status == 200
    job = f"/api/v1/jobs/ml/{name}"
    for path in (job, f"{job}/again", f"{job}/again?resume=true"):
        assert ui(path).status == 200, path
    paths = ("curves", "logs", "logs?rank=0&search=x", "artifacts", "artifacts/metrics.jsonl")
    answers = [ui(f"{job}/{path}") for path in paths]
    assert {answer.status for answer in answers} == {502}, [answer.body for answer in answers]
    return [answer.json["message"] for answer in answers]


REFUSAL = "your own credentials go only to an endpoint that you name"


def test_no_endpoint_of_a_job_sees_the_keys_of_the_user(ui: Ui, listener: Listener) -> None:
    add(ui, "plain", listener.url)
    past = ui("/api/v1/past")
    assert (past.status, REFUSAL in past.json["message"]) == (502, True)
    hosts = ("localhost", "2130706433", "127.1", "0x7f.1", "[::ffff:127.0.0.1]")
    for number, host in enumerate(hosts):
        add(ui, f"host-{number}", f"http://{host}:{listener.port}")
    add(ui, "no-keys", listener.url, {"AWS_REGION": "x", "AWS_ENDPOINT_URL_S3": listener.url})
    for name in ("plain", "no-keys", *(f"host-{number}" for number in range(len(hosts)))):
        assert all(REFUSAL in message for message in look_at(ui, name)), name
    assert ui("/api/v1/past").status == 422
    assert listener.seen == []


KEYS = {"AWS_ACCESS_KEY_ID": SECRETS, "AWS_SECRET_ACCESS_KEY": "y"}


def test_a_redirect_is_not_followed_and_the_secret_goes_alone(ui: Ui, listener: Listener) -> None:
    with listening(elsewhere=listener.url) as first:
        add(ui, "redirected", first.url, KEYS)
        look_at(ui, "redirected")
        assert first.seen
        assert all(f"Credential={SECRETS}/" in headers for headers in first.seen)
        assert not any(OWN in headers or OWN_TOKEN in headers for headers in first.seen)
    assert listener.seen == []


@pytest.mark.parametrize(
    ("name", "host"),
    [("dotted", "169.254.169.254"), ("decimal", "2852039166"), ("mapped", "[::ffff:a9fe:a9fe]")],
)
def test_a_link_local_endpoint_is_refused_with_a_secret_too(ui: Ui, name: str, host: str) -> None:
    add(ui, name, f"http://{host}", KEYS)
    assert all("link-local" in message for message in look_at(ui, name))


@pytest.mark.parametrize("name", [".", "..", "%2e", "%2E%2E", "%252e", "%0a", "%00", "a%3Fb", "a%23", "%20"])
def test_no_name_leads_to_other_objects(ui: Ui, name: str) -> None:
    """`DELETE …/distributedtrainingjobs/` would delete all jobs of the namespace."""
    before = len(ui.cluster.requests)
    jobs = set(ui.cluster.jobs)
    for path in (f"ml/{name}", f"{name}/plain"):
        for method, more in (("DELETE", ""), ("POST", "/suspend"), ("GET", ""), ("GET", "/logs")):
            assert ui(f"/api/v1/jobs/{path}{more}", method).status in (404, 502), (path, method)
    assert set(ui.cluster.jobs) == jobs
    for request in ui.cluster.requests[before:]:
        if request.method != "GET":
            kind = "/distributedtrainingjobs/"
            assert request.path.partition(kind)[2] not in ("", ".", "..")
            assert request.path.startswith("/apis/dtj.dev/v1alpha1/namespaces/")


@pytest.fixture
async def without_rights(ui: Ui) -> AsyncIterator[None]:
    async def forbid(
        request: web.Request, _: Callable[[], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        message = f'jobs is forbidden: User "eve" cannot do this: {request.method}'
        return refused(403, "Forbidden", message)

    ui.cluster.fault = forbid
    yield
    ui.cluster.fault = None


@pytest.mark.usefixtures("without_rights")
def test_a_user_without_rights_sees_and_does_nothing(ui: Ui) -> None:
    template = {"text": ui("/api/v1/templates/Horovod").json["text"]}
    job, scale = "/api/v1/jobs/ml/plain", {"replicas": {"worker": 3}}
    before = json.dumps(ui.cluster.jobs, default=str)
    for method, path, body in (
        ("GET", "/api/v1/jobs", None),
        ("GET", "/api/v1/jobs?all_namespaces=true", None),
        *(("GET", f"{job}{rest}", None) for rest in ("", "/curves", "/logs", "/artifacts", "/again")),
        *(("POST", f"{job}/{action}", None) for action in ("suspend", "resume")),
        ("POST", f"{job}/scale", scale),
        ("POST", "/api/v1/jobs", template),
        ("DELETE", job, None),
    ):
        answer = ui(path, method, body)
        assert (answer.status, 'User "eve" cannot do this' in answer.json["message"]) == (502, True), path
        assert "administrator" in answer.json["remedy"]
    assert ui("/api/v1/past").status == 422
    assert json.dumps(ui.cluster.jobs, default=str) == before


@pytest.mark.bound(
    "dtj ui",
    "A program on the same machine",
    "The head of a request",
    "Less than 128 KiB; then the connection is closed",
)
@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"GET /"], ids=["header", "address"])
def test_a_head_without_an_end_closes_the_connection(ui: Ui, begin: bytes) -> None:
    """Also without the token, so that no program on the machine fills the memory."""
    host, _, port = ui.origin.removeprefix("http://").partition(":")
    # It may close the connection before it has read all.
    with socket.create_connection((host, int(port)), timeout=60) as connection, suppress(ConnectionError):
        connection.sendall(begin + b"x" * (1 << 17))
        while connection.recv(1000):
            pass


def connected(ui: Ui) -> closing[http.client.HTTPConnection]:
    """A connection to the server, which is closed at the end of the block."""
    return closing(http.client.HTTPConnection(*ui.origin.removeprefix("http://").split(":"), timeout=60))


def refused_for_its_size(connection: http.client.HTTPConnection) -> None:
    """See the answer to a request with a large body."""
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["message"]) == (413, "the request is larger than 8 MiB")


def test_a_large_body_is_refused_before_it_is_read(ui: Ui) -> None:
    with connected(ui) as connection:
        connection.putrequest("POST", "/api/v1/validate")
        for name, value in (("Authorization", f"Bearer {ui.token}"), ("Content-Length", str(1 << 40))):
            connection.putheader(name, value)
        connection.endheaders()
        refused_for_its_size(connection)


@pytest.mark.bound(
    "dtj ui",
    "A page or program on the same machine",
    "The body of a request",
    "8 MiB",
)
def test_a_large_body_without_a_length_is_cut_off(ui: Ui) -> None:
    with connected(ui) as connection:
        piece = b"x" * (1 << 20)
        headers = {"Authorization": f"Bearer {ui.token}", "Content-Type": "application/json"}
        connection.request("POST", "/api/v1/validate", iter([piece] * 9), headers, encode_chunked=True)
        refused_for_its_size(connection)


def test_a_wrong_request_is_told_in_a_sentence(ui: Ui) -> None:
    for path, method in (("/api/v1/nothing", "GET"), ("/api/v1/jobs/ml/plain", "PUT")):
        assert ui(path, method).json["message"]


@pytest.fixture(scope="module")
def files(ui: Ui, running_object_store: ObjectStore) -> Store:
    """The bucket of a job that a hostile person may write to."""
    keys = {name: value for name, value in running_object_store.environment.items() if "KEY" in name}
    prefix = add(ui, "files", running_object_store.endpoint, keys)
    return open_store(prefix, running_object_store.environment)


JOB = "/api/v1/jobs/ml/files"


def row(step: int, **values: object) -> bytes:
    return json.dumps({"kind": "train", "time": "2026-11-21T12:00:00Z", "step": step, **values}).encode()


def test_rows_of_any_size_and_depth_leave_the_others_readable(ui: Ui, files: Store) -> None:
    rows = [row(1, loss=3), row(2, loss=2, deep=[]).replace(b"[]", b"[" * 30_000 + b"]" * 30_000)]
    rows += [row(3, wide="x" * artifacts.LONGEST_LINE), row(4, loss=1), b"\0\xff", b'{"a":' * 10_000]
    files.put_bytes("metrics.jsonl", b"\n".join(rows))
    curves = ui(f"{JOB}/curves").json
    assert curves["curves"][0]["steps"] == [1, 4]
    assert curves["leftOut"] == 4


@pytest.mark.bound(
    "dtj ui",
    "Who may write to the bucket",
    "Bytes of metrics.jsonl that are read",
    "16 MiB from its end; lines of 64 KiB",
)
def test_of_a_large_metrics_file_the_end_is_read(ui: Ui, files: Store) -> None:
    filler = b"x" * 60_000
    begin = [row(1, loss=3)] + [filler] * (artifacts.MOST_BYTES // len(filler) + 2)
    files.put_bytes("metrics.jsonl", b"\n".join([*begin, row(2, loss=2)]))
    assert ui(f"{JOB}/curves").json["curves"][0]["steps"] == [2]
    # A report needs the begin, too.
    left_out = ui("/api/v1/report?job=ml/files").json["leftOut"]
    assert "the limit is 16777216" in left_out[0]["reason"], left_out
    assert "bytes, and the limit is" in ui(f"{JOB}/page.html").body.decode()


@pytest.mark.bound(
    "dtj ui",
    "A program, by what it prints",
    "Lines of output on the page",
    "4,000 characters each, of the last 8 MiB",
)
def test_of_a_long_line_of_output_the_begin_is_shown(ui: Ui, files: Store) -> None:
    files.put_bytes("logs/attempt-1/launcher-0.log", b"first\n" + b"x" * (17 << 20) + b"\nlast\n")
    lines = [text for _, text, _ in ui(f"{JOB}/logs").json["lines"]]
    assert lines == ["last"]
    files.put_bytes("logs/attempt-1/launcher-0.log", b"first\n" + b"x" * 5000 + b"\nlast\n")
    lines = [text for _, text, _ in ui(f"{JOB}/logs").json["lines"]]
    assert lines == ["first", "x" * 4000, "last"]


def test_hostile_names_are_text(ui: Ui, files: Store) -> None:
    files.put_bytes("metrics.jsonl", row(1, **{HOSTILE: 1}) + b"\n" + row(2, **{HOSTILE: 2}))
    files.put_bytes("logs/attempt-1/launcher-0.log", f"[rank 0] {HOSTILE}\n".encode())
    key = "model/<img src=x onerror=alert(1)>"
    files.put_bytes(key, b"weights")
    download = ui(f"{JOB}/artifacts/{quote(key)}")
    assert download.body == b"weights"
    assert "<" not in download.headers["content-disposition"]
    failure = {"attempt": 1, "class": HOSTILE, "pod": HOSTILE, "message": HOSTILE, "lastLogLines": [HOSTILE]}
    artifacts = {"uri": files.location.uri}
    ui.cluster.set_status("files", phase="Failed", failure=failure, artifacts=artifacts, attempt=1)
    with chromium() as browser, visiting(browser, ui.address) as visit:
        page = visit.page
        page.get_by_text("Columns", exact=True).click()
        page.get_by_role("checkbox", name="--<img src").check()
        page.get_by_role("link", name="files", exact=True).click()
        page.locator(".sentence").wait_for()
        page.get_by_role("heading", name="<img").wait_for()
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        page.get_by_role("button", name=f"Save {key}").wait_for()
        page.get_by_text(f"[rank 0] {HOSTILE}").wait_for()
        assert page.locator("img").count() == 0
        add(ui, "other", "http://127.0.0.1:9")
        page.goto(f"{ui.origin}/#/compare/ml%2Ffiles/ml%2Fother")
        page.get_by_role("region", name="What differs").wait_for()
        # The pictures of the report are images too, once they are drawn.
        assert page.locator("img[src=x]").count() == 0
