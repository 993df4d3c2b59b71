"""S3 options of each request: encryption, requester pays, the form of URLs.

* server-side encryption and requester pays
* path style and virtual-hosted style URLs
* wrong options
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from moto.server import ThreadedMotoServer

from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.fence import Fence, put_fenced
from dtj_trainer.artifacts.store import ABSENT, Store
from dtj_trainer.data.sources import S3Source
from dtj_trainer.launch.settings import SettingsError, read_settings

LARGE = s3.MULTIPART_BYTES + 10
KEY = "arn:aws:kms:us-east-1:123456789012:key/1234"
Demand = Callable[[AWSPreparedRequest], bool]


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def environment(moto: str) -> dict[str, str]:
    given = {
        "AWS_ENDPOINT_URL_S3": moto,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
    }
    client = s3.make_client(given)
    if "training" not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket="training")
    return given


class Raw:
    """The body of an answer, as botocore reads it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, **_: object) -> Iterator[bytes]:
        yield self._content


def demanding(environment: dict[str, str], fulfils: Demand, name: str) -> Store:
    """A store whose bucket refuses the requests that don't fulfil its policy."""
    client = s3.make_client(environment)

    def refuse(request: AWSPreparedRequest, **_: object) -> AWSResponse | None:
        if fulfils(request):
            return None
        body = b"<Error><Code>AccessDenied</Code><Message>by the bucket's policy</Message></Error>"
        return AWSResponse(request.url, 403, {}, Raw(body))  # type: ignore[arg-type]  # needs only stream()

    client.meta.events.register("before-send.s3", refuse)
    return Store(s3.S3Location("training", name), client, environment)


def header(request: AWSPreparedRequest, name: str) -> str:
    value = request.headers.get(name, "")
    return value.decode() if isinstance(value, bytes) else value


def is_encrypted(request: AWSPreparedRequest) -> bool:
    query = parse_qs(urlsplit(request.url).query, keep_blank_values=True)
    makes = (request.method == "PUT" and "partNumber" not in query) or (
        request.method == "POST" and "uploads" in query
    )
    return not makes or (
        header(request, "x-amz-server-side-encryption") == "aws:kms"
        and header(request, "x-amz-server-side-encryption-aws-kms-key-id") == KEY
    )


def is_paid(request: AWSPreparedRequest) -> bool:
    return header(request, "x-amz-request-payer") == "requester"


def put_bytes(store: Store, _: Path) -> None:
    store.put_bytes("key", b"content")


def put_file(store: Store, folder: Path) -> None:
    (folder / "file").write_bytes(b"content")
    store.put_file("key", folder / "file")


def put_large_file(store: Store, folder: Path) -> None:
    (folder / "file").write_bytes(b"x" * LARGE)
    store.put_file("key", folder / "file")


def put_large_fenced(store: Store, folder: Path) -> None:
    (folder / "file").write_bytes(b"x" * LARGE)
    fence = Fence(store, "attempt.json", 1)
    put_fenced(store, fence, "key", ABSENT, lambda old: store.put_file("key", folder / "file", replaces=old))


PUTS = [put_bytes, put_file, put_large_file, put_large_fenced]
ENCRYPTED = {"DTJ_S3_SSE": "aws:kms", "DTJ_S3_SSE_KMS_KEY_ID": KEY}
PAID = {"DTJ_S3_REQUEST_PAYER": "requester"}


@pytest.mark.parametrize(("settings", "fulfils"), [(ENCRYPTED, is_encrypted), (PAID, is_paid)])
@pytest.mark.parametrize("put", PUTS, ids=lambda put: put.__name__)
def test_every_put_fulfils_the_buckets_policy(environment, tmp_path, put, settings, fulfils):
    with pytest.raises(s3.S3Error, match="is denied"):
        put(demanding(environment, fulfils, put.__name__), tmp_path)
    store = demanding(environment | settings, fulfils, put.__name__)
    put(store, tmp_path)
    stored = s3.make_client(environment).head_object(Bucket="training", Key=f"{put.__name__}/key")
    assert stored.get("SSEKMSKeyId") == settings.get("DTJ_S3_SSE_KMS_KEY_ID")


def test_every_request_says_that_the_requester_pays(environment, tmp_path, monkeypatch):
    store = demanding(environment | PAID, is_paid, "paid")
    (tmp_path / "file").write_bytes(b"x" * LARGE)
    store.put_file("file", tmp_path / "file")
    assert store.etag("file")
    assert store.get_with_etag("file")[0] == b"x" * LARGE
    store.get_file("file", tmp_path / "back")
    store.get_with_sha256("file", tmp_path / "back")
    store.get_growth("file", tmp_path / "growing")
    assert [item.key for item in store.objects()] == ["file"]
    assert store.folders() == []
    source = S3Source(store.location, store._client)
    found = source.list()["file"]
    assert b"".join(source.read(found, 5)) == b"x" * (LARGE - 5)
    source.keeps_md5(found)
    store.delete(["file"])
    assert list(store.objects()) == []


def test_nothing_is_asked_for_where_nothing_is_set(environment):
    sent: list[str] = []
    client = s3.make_client(environment)
    client.meta.events.register("before-send.s3", lambda request, **_: sent.extend(request.headers))
    Store(s3.S3Location("training", "plain"), client, environment).put_bytes("key", b"x")
    assert sent
    assert {name.lower() for name in sent} & {"x-amz-server-side-encryption", "x-amz-request-payer"} == set()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"DTJ_S3_SSE": "aes"}, "DTJ_S3_SSE must be AES256 or aws:kms, not 'aes'"),
        ({"DTJ_S3_REQUEST_PAYER": "me"}, "DTJ_S3_REQUEST_PAYER must be requester, not 'me'"),
        ({"DTJ_S3_ADDRESSING_STYLE": "host"}, "DTJ_S3_ADDRESSING_STYLE must be path, virtual or auto, not 'host'"),
        ({"DTJ_S3_SSE_KMS_KEY_ID": KEY}, "DTJ_S3_SSE_KMS_KEY_ID needs DTJ_S3_SSE to be aws:kms"),
        (
            {"DTJ_S3_SSE_KMS_KEY_ID": KEY, "DTJ_S3_SSE": "AES256"},
            "DTJ_S3_SSE_KMS_KEY_ID needs DTJ_S3_SSE to be aws:kms",
        ),
        ({"DTJ_S3_SSE_BUCKET_KEY": "yes"}, "DTJ_S3_SSE_BUCKET_KEY must be true or false, not 'yes'"),
        ({"DTJ_S3_SSE_BUCKET_KEY": "true"}, "DTJ_S3_SSE_BUCKET_KEY needs DTJ_S3_SSE to be aws:kms"),
        ({"DTJ_S3_SSE_CUSTOMER_KEY": "c2hvcnQ="}, "DTJ_S3_SSE_CUSTOMER_KEY must be 32 bytes in base64"),
        ({"DTJ_S3_SSE_CUSTOMER_KEY": "no base64"}, "DTJ_S3_SSE_CUSTOMER_KEY must be 32 bytes in base64"),
        (
            {"DTJ_S3_SSE_CUSTOMER_KEY": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "DTJ_S3_SSE": "aws:kms"},
            "DTJ_S3_SSE_CUSTOMER_KEY can't be used with DTJ_S3_SSE: remove one of them",
        ),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_at_the_start(environment, settings, sentence):
    with pytest.raises(SettingsError) as caught:
        read_settings(settings)
    assert str(caught.value) == sentence
    with pytest.raises(s3.LastingS3Error, match="the S3 settings can't be used: ") as told:
        s3.make_client(environment | settings)
    assert str(told.value).endswith(sentence)


def asked_url(environment: dict[str, str], bucket: str) -> str:
    """The URL by which a client asks for the key `file` of a bucket; nothing is sent."""
    urls: list[str] = []

    def answer(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        urls.append(request.url)
        return AWSResponse(request.url, 200, {"ETag": '"1"'}, Raw(b""))  # type: ignore[arg-type]

    given: dict[str, Any] = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
    }
    client = s3.make_client(given | environment)
    client.meta.events.register("before-send.s3", answer)
    assert Store(s3.parse_s3_uri(f"s3://{bucket}/x"), client, environment).etag("file") == '"1"'
    return urls[0]


STORE = {"AWS_ENDPOINT_URL_S3": "https://store.example"}


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "https://training.s3.amazonaws.com/x/file"),
        (STORE, "https://store.example/training/x/file"),
        (STORE | {"DTJ_S3_ADDRESSING_STYLE": ""}, "https://store.example/training/x/file"),
        (STORE | {"DTJ_S3_ADDRESSING_STYLE": "virtual"}, "https://training.store.example/x/file"),
        (STORE | {"DTJ_S3_ADDRESSING_STYLE": "auto"}, "https://store.example/training/x/file"),
        ({"DTJ_S3_ADDRESSING_STYLE": "path"}, "https://s3.amazonaws.com/training/x/file"),
    ],
)
def test_where_the_bucket_is_in_a_url(settings, url):
    assert asked_url(settings, "training") == url


@pytest.mark.parametrize(
    ("settings", "bucket", "url"),
    [
        ({}, "old_bucket", "https://s3.amazonaws.com/old_bucket/x/file"),
        (STORE, "old_bucket", "https://store.example/old_bucket/x/file"),
        (STORE, "tenant:bucket", "https://store.example/tenant%3Abucket/x/file"),
        (
            {},
            "arn:aws:s3:eu-west-1:123456789012:accesspoint/team-a",
            "https://team-a-123456789012.s3-accesspoint.eu-west-1.amazonaws.com/x/file",
        ),
    ],
)
def test_what_else_stands_for_a_bucket(settings, bucket, url):
    assert asked_url(settings, bucket) == url


def test_the_aws_configuration_decides_where_the_bucket_is_in_a_url(tmp_path, monkeypatch):
    (tmp_path / "config").write_text("[default]\ns3 =\n    addressing_style = virtual\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert asked_url(STORE, "training") == "https://training.store.example/x/file"
    assert (
        asked_url(STORE | {"DTJ_S3_ADDRESSING_STYLE": "path"}, "training")
        == "https://store.example/training/x/file"
    )
