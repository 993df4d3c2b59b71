"""The user's own AWS credentials go only to endpoints that the user named. A listener plays the endpoint of a job.

* jobs of a cluster whose endpoint the user did not name, by SDK and commands
* the job's own Secret, whole or without keys
* prefixes and histories of buckets whose job.yaml names the endpoint
* endpoints that the user named, in each way
* link-local addresses, also by names
"""

from __future__ import annotations

import asyncio
import socket
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainer.conftest import ObjectStore
from tests.trainer.s3_listener import Listener, listening
from tests.unit.support.configured_cluster import configured_cluster
from tests.unit.support.http_cluster import HttpCluster
from tests.unit.support.jobs import manifest, stored
from tests.unit.support.past_jobs import end, entry, put
from typer.testing import CliRunner

from dtj.api.errors import DtjError, Unreachable
from dtj.api.job import read_job
from dtj.cli.main import app
from dtj.client import AsyncClient
from dtj.client.store_environment import refuse_link_local, secret_environment, user_environment
from dtj_trainer.artifacts.store import Store

OWN, OWN_TOKEN, SECRETS = "OWNKEYOFTHEUSER", "token-of-the-user", "KEYOFTHESECRET"
ENDED = {"phase": "Failed", "conditions": [{"type": "Failed", "status": "True", "reason": "R",
         "lastTransitionTime": "2026-11-21T13:00:00Z"}]}  # fmt: skip


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as made:
        yield made
    assert not any(OWN in headers or OWN_TOKEN in headers for headers in made.seen)


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A user with keys in the environment and in a file, who named no endpoint."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE", "DTJ_ARTIFACTS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "credentials").write_text(
        f"[default]\naws_access_key_id = {OWN}\naws_secret_access_key = x\naws_session_token = {OWN_TOKEN}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    in_variables = {"ACCESS_KEY_ID": OWN, "SECRET_ACCESS_KEY": "x", "SESSION_TOKEN": OWN_TOKEN}
    for name, value in in_variables.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return monkeypatch


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpCluster]:
    async with configured_cluster(tmp_path, monkeypatch) as running:
        yield running


def put_job(server: HttpCluster, endpoint: str) -> None:
    artifacts = {"uri": "s3://training/jobs", "endpoint": endpoint, "secretName": "s3"}
    server.cluster.put(stored(artifacts=artifacts) | {"status": ENDED})


def put_secret(server: HttpCluster, **values: str) -> None:
    data = {key: b64encode(value.encode()).decode() for key, value in values.items()}
    server.cluster.put({"kind": "Secret", "metadata": {"name": "s3"}, "data": data})


def failure(*words: str) -> DtjError:
    error = CliRunner().invoke(app, [*words]).exception
    assert isinstance(error, DtjError), error
    return error


COMMANDS = [
    ("artifacts", "ls", "mnist"),
    ("artifacts", "cp", "mnist", "job.yaml", "-"),
    ("logs", "mnist"),
    ("report", "mnist"),
    ("list", "--past"),
]


@pytest.mark.parametrize("in_variables", [True, False], ids=["variables", "file"])
@pytest.mark.parametrize("secret", [None, {"AWS_REGION": "x"}], ids=["no-secret", "secret-without-keys"])
async def test_the_endpoint_of_a_job_gets_no_request_of_the_user(
    server: HttpCluster,
    listener: Listener,
    user: pytest.MonkeyPatch,
    secret: dict[str, str] | None,
    in_variables: bool,
) -> None:
    put_job(server, listener.url)
    if secret:
        put_secret(server, **secret, AWS_ENDPOINT_URL_S3=listener.url)
    if not in_variables:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            user.delenv(name)
    for words in COMMANDS:
        error = await asyncio.to_thread(failure, *words)
        assert isinstance(error, Unreachable), words
        assert "your own credentials go only to an endpoint that you name" in error.message
    assert listener.seen == []


async def test_the_endpoint_of_a_job_gets_the_keys_of_its_secret(
    server: HttpCluster, listener: Listener
) -> None:
    put_job(server, listener.url)
    put_secret(server, AWS_ACCESS_KEY_ID=SECRETS, AWS_SECRET_ACCESS_KEY="y")
    for words in COMMANDS:
        await asyncio.to_thread(failure, *words)
    assert len(listener.seen) >= len(COMMANDS)
    assert all(f"Credential={SECRETS}/" in headers for headers in listener.seen)


def test_a_customer_key_of_the_user_stays_with_the_user(user: pytest.MonkeyPatch) -> None:
    user.setenv("DTJ_S3_SSE_CUSTOMER_KEY", "k" * 44)
    spec = read_job(manifest(artifacts={"uri": "s3://training/jobs", "endpoint": "https://127.0.0.1:1"})).spec
    secret = {"AWS_ACCESS_KEY_ID": SECRETS, "AWS_SECRET_ACCESS_KEY": "y"}
    found = secret_environment(spec, secret, user_environment())
    assert found is not None
    assert "DTJ_S3_SSE_CUSTOMER_KEY" not in found
    assert found["AWS_ENDPOINT_URL_S3"] == "https://127.0.0.1:1"
    named = secret_environment(spec, secret, user_environment("https://127.0.0.1:2"))
    assert named is not None
    assert named["AWS_ENDPOINT_URL_S3"] == "https://127.0.0.1:2", "what the user named takes precedence"


def test_an_endpoint_in_a_bucket_is_not_followed(
    job_store: Store, listener: Listener, object_store: ObjectStore, user: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.environment.items():
        user.setenv(name, value)
    user.delenv("AWS_SESSION_TOKEN")
    hostile = manifest(
        artifacts={"uri": job_store.location.uri, "endpoint": listener.url, "secretName": "s3"}
    )
    put(job_store, entry(), end(entry()) | {"endpoint": listener.url})
    job_store.put_bytes(f"{entry().prefix}/job.yaml", yaml.safe_dump(hostile).encode())
    job_store.put_bytes(f"{entry().prefix}/logs/attempt-1/launcher-0.log", b"[rank 0] step 1\n")
    uri = job_store.location.uri
    for words in (
        ["list", "--past", "--from", uri],
        ["list", "--past", "--from", uri, "--phase", "Succeeded"],
        ["status", f"{uri}/{entry().prefix}"],
        ["logs", f"{uri}/{entry().prefix}"],
        ["artifacts", "ls", entry().name, "--past", "--from", uri],
    ):
        assert CliRunner().invoke(app, words).exit_code == 0, words
    assert listener.seen == []


def test_the_user_names_an_endpoint_by_option_variable_and_file(
    tmp_path: Path, user: pytest.MonkeyPatch
) -> None:
    assert "AWS_ENDPOINT_URL_S3" not in user_environment()
    (tmp_path / "aws-config").write_text(
        "[default]\nservices = own\n[services own]\ns3 =\n  endpoint_url = http://in-the-file:1\n"
    )
    assert user_environment()["AWS_ENDPOINT_URL_S3"] == "http://in-the-file:1"
    user.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert "AWS_ENDPOINT_URL_S3" not in user_environment()
    user.setenv("AWS_ENDPOINT_URL", "http://in-a-variable:1")
    assert user_environment()["AWS_ENDPOINT_URL_S3"] == "http://in-a-variable:1"
    assert user_environment("http://option:1")["AWS_ENDPOINT_URL_S3"] == "http://option:1"


async def test_the_users_keys_go_to_the_endpoint_that_the_user_named(
    server: HttpCluster, user: pytest.MonkeyPatch
) -> None:
    put_job(server, "http://of-the-job:1")
    put_secret(server, AWS_ACCESS_KEY_ID=SECRETS, AWS_SECRET_ACCESS_KEY="y", AWS_ENDPOINT_URL_S3="http://s:1")
    user.setenv("AWS_ENDPOINT_URL_S3", "http://of-the-user:1")
    async with AsyncClient() as client:
        own = (await client.artifacts("mnist")).environment
        assert (own["AWS_ENDPOINT_URL_S3"], own["AWS_ACCESS_KEY_ID"]) == ("http://of-the-user:1", OWN)
        user.delenv("AWS_ACCESS_KEY_ID")
        theirs = (await client.artifacts("mnist")).environment
        assert (theirs["AWS_ENDPOINT_URL_S3"], theirs["AWS_ACCESS_KEY_ID"]) == (
            "http://of-the-user:1",
            SECRETS,
        )
        assert "AWS_SESSION_TOKEN" not in theirs


LINK_LOCAL = [
    "http://169.254.169.254",
    "http://169.254.170.2:80/path",
    "http://2852039166",
    "http://[fe80::1]:8333",
    "http://[::ffff:169.254.169.254]",
    "http://[fd00:ec2::254]",
]


@pytest.mark.parametrize("endpoint", LINK_LOCAL)
def test_a_link_local_address_is_refused(endpoint: str) -> None:
    with pytest.raises(Unreachable, match="a link-local address, which no store has"):
        refuse_link_local(endpoint)


def test_a_name_of_a_link_local_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: Any, **__: Any) -> list[Any]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (address, 80)) for address in ("10.0.0.1", "169.254.169.254")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(Unreachable, match=r"http://store\.example resolves to 169\.254\.169\.254"):
        refuse_link_local("http://store.example")


def test_other_endpoints_are_let_through() -> None:
    for endpoint in ("http://127.0.0.1:8333", "http://[::1]:1", "https://no-such-host.invalid"):
        refuse_link_local(endpoint)
    with pytest.raises(Unreachable, match="is not a URL"):
        refuse_link_local("http://[::1")


async def test_a_link_local_endpoint_of_a_job_is_refused_with_its_secret_too(server: HttpCluster) -> None:
    put_job(server, "http://169.254.169.254")
    put_secret(server, AWS_ACCESS_KEY_ID=SECRETS, AWS_SECRET_ACCESS_KEY="y")
    for words in COMMANDS:
        assert "link-local" in (await asyncio.to_thread(failure, *words)).message
