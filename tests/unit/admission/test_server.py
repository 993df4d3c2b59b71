"""The HTTPS server of the webhook: requests over a real TLS connection, and the answers.

* verdicts over TLS, and their metrics
* malformed, deeply nested, too large and unfinished requests
* an error inside the webhook, and plain HTTP on its port
* the flags of the webhook
* a replica that waits for the Lease while it serves the webhook
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from dtj.admission import server as admission_server
from dtj.admission.certificates import issue
from dtj.admission.server import WebhookServer
from dtj.admission.service import Serving
from dtj.api.job import Manifest
from dtj.local.machine import free_ports
from dtj.operator_flags import read_flags
from tests.unit.support.admission import WRONG, job, request
from tests.unit.support.kubeconfig import write_kubeconfig
from tests.unit.support.operator_process import PROGRAM
from tests.unit.support.tls import HOST, post, trusted

PAIR = issue(HOST, datetime.now(UTC))


@dataclass
class Running:
    registry: CollectorRegistry
    port: int

    async def post(self, body: bytes) -> tuple[int, str]:
        return await post(self.port, PAIR.authorities, body)

    def count(self, verdict: str) -> float | None:
        return self.registry.get_sample_value("dtj_admission_requests_total", {"verdict": verdict})


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    registry = CollectorRegistry()
    serving = Serving(registry)
    serving.use(PAIR)
    async with WebhookServer(registry).served(0, serving.context, "127.0.0.1") as port:
        yield Running(registry, port)


async def test_jobs_are_judged_and_verdicts_counted(running: Running) -> None:
    assert running.count("refused") == 0
    status, text = await running.post(json.dumps(request("CREATE", job())).encode())
    assert (status, json.loads(text)["response"]["allowed"]) == (200, True)
    status, text = await running.post(json.dumps(request("CREATE", job(**WRONG))).encode())
    assert (status, json.loads(text)["response"]["allowed"]) == (200, False)
    assert "spec.env[0].name" in text

    assert (running.count("allowed"), running.count("refused"), running.count("malformed")) == (1, 1, 0)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the request is not readable JSON: Expecting value"),
        (b"{", "the request is not readable JSON"),
        (b"\xff\xfe\xfd", "the request is not readable JSON"),
        (b"[" * 100_000, "the request is not readable JSON"),
        (b"{}", "send an AdmissionReview of admission.k8s.io/v1"),
        (b"9" * 10_000, "the request is not readable JSON"),
        (json.dumps(request("CREATE", None)).encode(), "request.object: required"),
    ],
)
async def test_what_is_malformed_is_answered_with_400_and_why(
    running: Running, body: bytes, says: str
) -> None:
    status, text = await running.post(body)

    assert status == 400
    assert says in text
    assert running.count("malformed") == 1
    status, _ = await running.post(json.dumps(request("CREATE", job())).encode())
    assert status == 200, "it goes on"


@pytest.mark.bound(
    "webhook",
    "Who may create jobs",
    "Levels of a template",
    "100",
)
@pytest.mark.parametrize("levels", [600, 9_000])
async def test_a_job_nested_without_end_is_refused(running: Running, levels: int) -> None:
    wrong = job()
    wrong["spec"]["replicaSpecs"]["worker"]["template"] = "nested"
    sent = json.dumps(request("CREATE", wrong)).replace('"nested"', '{"a":' * levels + "1" + "}" * levels)
    status, text = await running.post(sent.encode())

    assert status == 200
    (cause,) = json.loads(text)["response"]["status"]["details"]["causes"]
    assert cause["field"] == "spec.replicaSpecs.worker.template"
    assert cause["message"] == "nested too deeply: more than 100 lists and maps in one another"


async def test_a_job_nested_too_deeply_to_be_compared_is_malformed(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nested(*_: object) -> Manifest:
        raise RecursionError

    monkeypatch.setattr(admission_server, "review", nested)
    status, text = await running.post(json.dumps(request("CREATE", job())).encode())

    assert (status, text) == (400, "the request is nested too deeply\n")


async def test_the_event_loop_moves_while_a_job_is_judged(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It renews the Lease."""
    begun, moved = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def review(sent: Manifest, host_paths: Sequence[str]) -> Manifest:
        loop.call_soon_threadsafe(begun.set)
        assert moved.wait(30), "the event loop stands still"
        return real(sent, host_paths)

    real = admission_server.review
    monkeypatch.setattr(admission_server, "review", review)
    answer = asyncio.create_task(running.post(json.dumps(request("CREATE", job())).encode()))
    await begun.wait()
    moved.set()

    assert (await answer)[0] == 200


@pytest.mark.bound(
    "webhook",
    "Any pod that reaches the port",
    "The bytes of a request",
    "6.25 MiB, twice the largest object",
)
async def test_a_request_that_is_too_large_is_refused(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = job(args=["x" * 1000] * 3000)
    status, _ = await running.post(json.dumps(request("UPDATE", largest, largest)).encode())
    assert status == 200, "the largest object that the API server keeps, twice"
    status, text = await running.post(b" " * (admission_server._LARGEST + 1))
    assert (status, text) == (400, "the request has more than 6553600 bytes\n")


@pytest.mark.bound(
    "webhook",
    "Any pod that reaches the port",
    "The time of a request",
    "A time limit, after which it is given up",
)
async def test_a_request_that_does_not_end_is_given_up(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_server, "_BODY_SECONDS", 0.05)

    async def endless() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    status, text = await post(running.port, PAIR.authorities, endless())  # type: ignore[arg-type]
    assert (status, text) == (400, "the request did not arrive in 0.05 s\n")


async def test_clients_that_send_slowly_delay_nobody(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_server, "_BODY_SECONDS", 3600.0)
    trusting = ssl.create_default_context(cadata=PAIR.authorities.decode())
    head = b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    slow = []
    for _ in range(48):
        _, writer = await asyncio.open_connection(
            "127.0.0.1", running.port, ssl=trusting, server_hostname=HOST
        )
        writer.write(head)
        await writer.drain()
        slow.append(writer)
    async with asyncio.timeout(100):
        status, _ = await running.post(json.dumps(request("CREATE", job())).encode())
    assert status == 200
    for writer in slow:
        writer.close()


async def test_what_goes_wrong_inside_is_an_error_of_one_request(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(request("CREATE", job())).encode()
    with monkeypatch.context() as patched:
        patched.setattr(admission_server, "review", lambda *_: 1 / 0)
        assert (await running.post(body))[0] == 500
    assert (await running.post(body))[0] == 200
    assert (running.count("error"), running.count("allowed")) == (1, 1)


async def test_plain_http_and_noise_leave_it_unharmed(running: Running) -> None:
    for noise in (b"", b"GET /validate HTTP/1.1\r\n\r\n", os.urandom(100)):
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(noise)
        writer.close()
    assert await trusted(running.port, PAIR.authorities) == ""


# --- flags -------------------------------------------------------------------------------------------


def test_the_webhook_is_off_unless_it_has_a_port() -> None:
    assert read_flags([]).webhook is None
    webhook = read_flags(["--webhook-port=9443", "--webhook-namespace=dtj-system"]).webhook
    assert (webhook.port, webhook.name, webhook.namespace) == (9443, "dtj-operator-webhook", "dtj-system")
    assert (webhook.validity.days, webhook.folder) == (90, None)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--webhook-port=9443"], "needs --webhook-namespace or --webhook-cert-dir"),
        (
            ["--webhook-port=70000", "--webhook-namespace=a"],
            "--webhook-port: must be from 1 to 65535, got 70000",
        ),
        (
            ["--webhook-port=1", "--webhook-namespace=a", "--webhook-cert-validity=0"],
            "--webhook-cert-validity: must be from 1 s to ten years (315619200 s), got 0",
        ),
        (
            ["--webhook-port=1", "--webhook-namespace=a", "--webhook-cert-validity=nan"],
            "--webhook-cert-validity: must be from 1 s to ten years (315619200 s), got nan",
        ),
    ],
)
def test_flags_of_the_webhook_that_can_not_work_are_refused(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read_flags(flags)
    assert says in capsys.readouterr().err


# --- the process -------------------------------------------------------------------------------------


async def test_a_replica_that_waits_judges_jobs_also_while_its_end_goes_round(tmp_path: Path) -> None:
    """Nobody leads here: there is no API server. The certificate lies in a folder."""
    ports = free_ports(3)
    write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:9", "token")
    (tmp_path / "tls.crt").write_bytes(PAIR.certificate)
    (tmp_path / "tls.key").write_bytes(PAIR.key)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM,
        "--leader-elect", "--lease-namespace=dtj-system", f"--webhook-cert-dir={tmp_path}",
        f"--webhook-port={ports[0]}", f"--health-port={ports[1]}", f"--metrics-port={ports[2]}",
        env=os.environ | {"KUBECONFIG": str(tmp_path / "kubeconfig")}, stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    body = json.dumps(request("CREATE", job(**WRONG))).encode()
    try:
        while True:
            assert process.returncode is None, (await process.communicate())[1].decode()
            try:
                status, text = await post(ports[0], PAIR.authorities, body)
                break
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)
        assert (status, json.loads(text)["response"]["allowed"]) == (200, False)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{ports[2]}/metrics") as answer,
        ):
            told = await answer.text()
        assert 'dtj_admission_requests_total{verdict="refused"} 1.0' in told
        assert "dtj_webhook_certificate_expiry_timestamp_seconds 0.0" not in told
        process.send_signal(signal.SIGTERM)
        assert (await post(ports[0], PAIR.authorities, body))[0] == 200
        _, said = await process.communicate()
        assert (process.returncode, b"Traceback" in said) == (0, False), said.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
