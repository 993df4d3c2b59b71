"""The rows of docs/stores.md: stores that differ from the S3 server of the tests, each behind a proxy.

* slow stores, refused and cut-off requests
* stores without conditional writes
* credentials that expire
* encryption and payer that a bucket demands of each request
* names, certificates and HTTP proxies
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from botocore.retries.standard import ExponentialBackoff
from tests.trainer.conftest import BUCKET, REPOSITORY, ObjectStore
from tests.trainer.differing_store import (
    HOST,
    WITHOUT_CONDITIONS,
    Answer,
    Asked,
    Differing,
    Rule,
    differing_store,
    refusal,
)

from dtj.admission.certificates import issue
from dtj_trainer.artifacts import download, s3
from dtj_trainer.artifacts.fence import Fence, put_fenced
from dtj_trainer.artifacts.store import ABSENT, open_store
from dtj_trainer.data.sources import S3Source

PART = 5 * s3.MEBIBYTE
CONTENT = os.urandom(PART + 10)
PAGE = REPOSITORY / "docs/stores.md"


@pytest.fixture(autouse=True)
def small_parts_sent_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "MULTIPART_BYTES", PART)
    monkeypatch.setattr(download, "PART_BYTES", PART)
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.0)


@pytest.fixture
def store(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Differing]:
    """A store that differs in nothing yet, and this process's environment pointing at the store."""
    with differing_store(object_store.endpoint) as differing:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", differing.endpoint)
        yield differing


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """The file with the CA's certificate, and the TLS of a server whose certificate that CA signed."""
    folder = tmp_path_factory.mktemp("authority")
    pair = issue(HOST, datetime.now(UTC))
    (folder / "ca").write_bytes(pair.authorities)
    (folder / "certificate").write_bytes(pair.certificate)
    (folder / "key").write_bytes(pair.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "certificate", folder / "key")
    return folder / "ca", tls


@pytest.fixture
def tls_store(
    object_store: ObjectStore, authority: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Differing]:
    """The same at `https://store.example`, whose CA AWS_CA_BUNDLE names. No resolver knows the name."""
    certificates, tls = authority
    with differing_store(object_store.endpoint, tls) as differing:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"https://{HOST}:{urlsplit(differing.endpoint).port}")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates))
        yield differing


@pytest.fixture
def resolvable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`store.example` and the names below it are this machine."""
    resolve = socket.getaddrinfo

    def with_store(host: str, *rest: object, **options: object) -> object:
        return resolve("127.0.0.1" if str(host).endswith(HOST) else host, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", with_store)


def use(uri: str, folder: Path) -> None:
    """Make every kind of request that a job makes: a claim, fenced puts in parts, reads, a data set, deletes."""
    opened = open_store(uri)
    (folder / "file").write_bytes(CONTENT)
    try:
        fence = Fence(opened, "attempt.json", 1)
        put_fenced(opened, fence, "small", ABSENT, lambda old: opened.put_bytes("small", b"x", replaces=old))
        put_fenced(
            opened,
            fence,
            "large",
            ABSENT,
            lambda old: opened.put_file("large", folder / "file", replaces=old),
        )
        digest = hashlib.sha256(CONTENT).hexdigest()
        assert opened.get_with_sha256("large", folder / "back") == digest
        source = S3Source(opened.location, opened._client)
        found = source.list()
        assert sorted(found) == ["attempt.json", "large", "small"]
        assert b"".join(source.read(found["large"], 7)) == CONTENT[7:]
    finally:
        opened.delete(["attempt.json", "small", "large"])
    assert list(opened.objects()) == []


def test_what_the_proxy_does_not_change_works(store: Differing, job_uri: str, tmp_path: Path) -> None:
    use(job_uri, tmp_path)
    assert {asked.method for asked in store.asked} == {"GET", "HEAD", "PUT", "POST"}
    assert any(asked.is_part for asked in store.asked)


# --- slow, refused, cut off ------------------------------------------------------------------------------------


def test_a_store_that_stops_in_the_middle_of_an_answer(
    store: Differing, job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silence ends the connection, not the download, which goes on at the byte where it stopped."""
    (tmp_path / "file").write_bytes(CONTENT)
    open_store(job_uri).put_file("slow", tmp_path / "file")
    monkeypatch.setattr(s3, "READ_TIMEOUT_SECONDS", 1)
    goes_on = threading.Event()

    def rule(asked: Asked) -> None:
        if asked.method == "GET" and asked.has("Range", f"bytes={2**18}-{PART - 1}"):
            goes_on.set()

    def chunk(asked: Asked, start: int) -> bool:
        if start == 2**18 and asked.has("Range", f"bytes=0-{PART - 1}"):
            goes_on.wait()
            return False
        return True

    store.rule, store.chunk = rule, chunk
    opened = open_store(job_uri)
    assert opened.get_with_sha256("slow", tmp_path / "back") == hashlib.sha256(CONTENT).hexdigest()
    assert goes_on.is_set()
    opened.delete(["slow"])


def test_a_store_that_throttles(store: Differing, job_uri: str, tmp_path: Path) -> None:
    """503 SlowDown for every third request, and for a part whose content has arrived only partly."""
    count, cut = 0, []

    def rule(asked: Asked) -> Answer | None:
        nonlocal count
        count += 1
        if asked.is_part and asked.query["partNumber"] == ["1"] and not cut:
            cut.append(asked)
            return refusal(503, "SlowDown", read=2**18)
        return refusal(503, "SlowDown") if count % 3 == 0 else None

    store.rule = rule
    use(job_uri, tmp_path)
    assert cut
    assert count > 9


# --- conditional writes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "unknown"), WITHOUT_CONDITIONS.values(), ids=WITHOUT_CONDITIONS)
def test_a_store_without_conditional_writes(
    store: Differing,
    job_uri: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    rule: Rule,
    unknown: tuple[str, ...],
) -> None:
    """Training works, a later attempt takes over, and the log says what is not protected."""
    store.rule, store.unknown = rule, unknown
    opened = open_store(job_uri)
    try:
        first, second = Fence(opened, "attempt.json", 1), Fence(opened, "attempt.json", 2)
        for fence in (first, second):
            put_fenced(opened, fence, "key", ABSENT, lambda old: opened.put_bytes("key", b"x", replaces=old))
        with pytest.raises(s3.S3Error, match="attempt 2 has taken over"):
            first.hold()
    finally:
        opened.delete(["attempt.json", "key"])
    warnings = {record.getMessage() for record in caplog.records}
    assert any(f"the store of {job_uri} has no conditional writes" in warning for warning in warnings)
    assert second.expecting(ABSENT) is None


# --- credentials ------------------------------------------------------------------------------------------------


def test_credentials_that_expire_are_fetched_again(
    store: Differing, job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first token is about to expire: the store does not take it once it has a successor."""
    issued: list[str] = []

    def rule(asked: Asked) -> Answer | None:
        if asked.path != "/credentials":
            expired = len(issued) > 1 and asked.has("X-Amz-Security-Token", issued[0])
            return refusal(400, "ExpiredToken") if expired else None
        minutes = 60 if issued else 5  # botocore fetches new ones when less than 10 minutes are left
        issued.append(f"token-{len(issued)}")
        until = datetime.now(UTC) + timedelta(minutes=minutes)
        keys = {"AccessKeyId": "a", "SecretAccessKey": "b", "Token": issued[-1]}
        return Answer(200, json.dumps({**keys, "Expiration": until.strftime("%Y-%m-%dT%H:%M:%SZ")}))

    store.rule = rule
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{store.endpoint}/credentials")
    opened = open_store(job_uri)
    for _ in range(3):
        opened.put_bytes("key", b"x")
    assert issued == ["token-0", "token-1"]
    opened.delete(["key"])
    use(job_uri, tmp_path)


def test_a_token_that_nothing_renews_is_named(
    store: Differing, job_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.rule = lambda _: refusal(400, "ExpiredToken")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "old")
    with pytest.raises(s3.S3Error, match=rf"session token for {job_uri}/key is expired or invalid") as told:
        open_store(job_uri).put_bytes("key", b"x")
    assert not told.value.transient


# --- what a bucket demands --------------------------------------------------------------------------------------

KMS_KEY = "arn:aws:kms:us-east-1:123456789012:key/1234"
CUSTOMER_KEY = bytes(range(32))


def demand(store: Differing, where: Callable[[Asked], bool], **headers: str) -> None:
    """Let the store refuse requests of that kind without these headers, written with `_` for `-`."""
    wanted = {f"x-amz-{name.replace('_', '-')}": value for name, value in headers.items()}

    def rule(asked: Asked) -> Answer | None:
        fulfilled = all(asked.has(name, value) for name, value in wanted.items())
        return None if fulfilled or not where(asked) else refusal(403, "AccessDenied")

    store.rule, store.unknown = rule, tuple(wanted)


def refused_and_then_used(
    uri: str, folder: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(s3.S3Error, match="is denied"):
        open_store(uri).put_bytes("key", b"x")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    use(uri, folder)


def test_a_bucket_that_demands_kms(
    store: Differing, job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand(
        store,
        lambda asked: asked.creates,
        server_side_encryption="aws:kms",
        server_side_encryption_aws_kms_key_id=KMS_KEY,
        server_side_encryption_bucket_key_enabled="true",
    )
    settings = {"DTJ_S3_SSE": "aws:kms", "DTJ_S3_SSE_KMS_KEY_ID": KMS_KEY, "DTJ_S3_SSE_BUCKET_KEY": "true"}
    refused_and_then_used(job_uri, tmp_path, settings, monkeypatch)


@pytest.mark.usefixtures("resolvable")
def test_a_bucket_that_demands_the_customers_key(
    tls_store: Differing, job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSE-C: who reads an object, or sends a part, shows the key too."""
    text = base64.b64encode(CUSTOMER_KEY).decode()
    demand(
        tls_store,
        lambda asked: asked.is_of_an_object,
        server_side_encryption_customer_algorithm="AES256",
        server_side_encryption_customer_key=text,
        server_side_encryption_customer_key_md5=base64.b64encode(hashlib.md5(CUSTOMER_KEY).digest()).decode(),
    )
    refused_and_then_used(job_uri, tmp_path, {"DTJ_S3_SSE_CUSTOMER_KEY": text}, monkeypatch)


def test_the_customers_key_is_not_sent_in_clear_text(
    store: Differing, job_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = base64.b64encode(CUSTOMER_KEY).decode()
    monkeypatch.setenv("DTJ_S3_SSE_CUSTOMER_KEY", text)
    with pytest.raises(s3.LastingS3Error, match="DTJ_S3_SSE_CUSTOMER_KEY needs an https:// endpoint") as told:
        open_store(job_uri).put_bytes("key", b"x")
    assert text not in str(told.value)
    assert store.asked == []


def test_a_bucket_whose_requesters_pay(
    store: Differing, job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand(store, lambda _: True, request_payer="requester")
    refused_and_then_used(job_uri, tmp_path, {"DTJ_S3_REQUEST_PAYER": "requester"}, monkeypatch)


# --- names, certificates, proxies -------------------------------------------------------------------------------


@pytest.mark.usefixtures("resolvable")
def test_a_store_with_a_ca_of_its_own(
    tls_store: Differing, job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(job_uri, tmp_path)
    monkeypatch.delenv("AWS_CA_BUNDLE")
    with pytest.raises(s3.S3Error, match="Check the endpoint, and AWS_CA_BUNDLE") as told:
        open_store(job_uri).folders()
    assert not told.value.transient


@pytest.mark.usefixtures("resolvable")
def test_a_store_with_the_bucket_in_its_name(
    store: Differing, job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = urlsplit(store.endpoint).port
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{HOST}:{port}")
    monkeypatch.setenv("DTJ_S3_ADDRESSING_STYLE", "virtual")
    use(job_uri, tmp_path)
    assert {asked.headers["Host"] for asked in store.asked} == {f"{BUCKET}.{HOST}:{port}"}


def test_a_store_behind_an_http_proxy(
    object_store: ObjectStore,
    job_uri: str,
    tls_store: Differing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the proxy knows where the store is."""
    with differing_store(tls_store.endpoint) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.endpoint)
        use(job_uri, tmp_path)
        assert {asked.method for asked in proxy.asked} == {"CONNECT"}
        assert {asked.path for asked in proxy.asked} == {f"{HOST}:{urlsplit(tls_store.endpoint).port}"}
    assert tls_store.asked


@pytest.mark.usefixtures("resolvable")
def test_a_store_that_the_proxy_is_not_for(
    tls_store: Differing, job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with differing_store(tls_store.endpoint) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.endpoint)
        monkeypatch.setenv("NO_PROXY", HOST)
        use(job_uri, tmp_path)
        assert proxy.asked == []


# --- the page ---------------------------------------------------------------------------------------------------


def test_each_row_of_the_page_names_a_test_that_exists() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "::" in line]
    named = [re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row) for row in rows]
    assert len(rows) >= 11
    assert all(named)
    for path, name in {one for row in named for one in row}:
        assert re.search(rf"^def {name}\(", (REPOSITORY / path).read_text(), re.MULTILINE), name
    here = set(re.findall(r"^def (test_a_\w+)\(", Path(__file__).read_text(), re.MULTILINE))
    assert here <= {name for row in named for _, name in row}, "each store that differs has a row"
