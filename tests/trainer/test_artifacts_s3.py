"""S3 clients, URIs and errors.

* URIs, endpoints and environments
* credentials, certificates and identity providers
* uploads and downloads: large, interrupted, changed, on a full disk
* conditional writes
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import ssl
import subprocess
import threading

import pytest
from botocore.exceptions import ClientError, ResponseStreamingError, SSLError
from botocore.stub import Stubber

from dtj.api.spec import S3_URI
from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.download import PART_BYTES
from dtj_trainer.artifacts.manifest import sha256_of
from dtj_trainer.artifacts.store import ABSENT, Store, open_store


def test_uri_is_split():
    location = s3.parse_s3_uri("s3://bucket.name/a/b/")
    assert location == ("bucket.name", "a/b")
    assert location.uri == "s3://bucket.name/a/b"
    assert (location / "c").uri == "s3://bucket.name/a/b/c"
    assert (s3.parse_s3_uri("s3://bucket") / "c").uri == "s3://bucket/c"


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "bucket/x",
        "http://bucket/x",
        "s3://",
        "s3:///x",
        "s3://UPPER/x",
        "s3://a/x",
        "s3://minio:9000/b/x",
        "s3://a-b:bucket/x",
        "s3://a:b:bucket/x",
        "s3://arn:aws:s3:us-east-1:123:accesspoint/name/x",
        "s3://arn:aws:s3::123456789012:accesspoint/name.mrap/x",
        "s3://arn:aws:s3:::training/x",
    ],
)
def test_what_is_no_uri_is_refused(uri):
    with pytest.raises(ValueError, match=r"is not an S3 URI|names no valid bucket"):
        s3.parse_s3_uri(uri)
    assert not re.search(S3_URI, uri), "the operator and the trainer agree"


ACCESS_POINT = "arn:aws:s3:us-east-1:123456789012:accesspoint/team-a"


@pytest.mark.parametrize(
    ("rest", "bucket", "prefix"),
    [
        ("old_bucket/a", "old_bucket", "a"),
        ("tenant_A:bucket/a/b", "tenant_A:bucket", "a/b"),
        (ACCESS_POINT, ACCESS_POINT, ""),
        (f"{ACCESS_POINT}/a/b/", ACCESS_POINT, "a/b"),
        (
            "arn:aws-cn:s3:cn-north-1:123456789012:accesspoint/x-1/a",
            "arn:aws-cn:s3:cn-north-1:123456789012:accesspoint/x-1",
            "a",
        ),
        (
            "team-a-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias/a",
            "team-a-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias",
            "a",
        ),
    ],
)
def test_what_else_stands_for_a_bucket(rest, bucket, prefix):
    assert s3.parse_s3_uri(f"s3://{rest}") == (bucket, prefix)
    assert re.search(S3_URI, f"s3://{rest}"), "the operator and the trainer agree"


def error_of(uri: str) -> s3.S3Error:
    with pytest.raises(s3.S3Error) as caught:
        open_store(uri).folders()
    return caught.value


def test_no_such_bucket(object_store):
    error = error_of("s3://no-such-bucket/x")
    assert str(error) == f"the bucket no-such-bucket does not exist at {object_store.endpoint}"
    assert not error.transient


def test_wrong_secret(object_store, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    error = error_of("s3://training/x")
    assert "wrong access key or secret (SignatureDoesNotMatch)" in str(error)
    assert "wrong" in str(error)
    assert not error.transient


def test_no_credentials(object_store, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    error = error_of("s3://training/x")
    assert "no S3 credentials for s3://training/x" in str(error)
    assert not error.transient


def test_endpoint_down(object_store):
    object_store.kill()
    error = error_of("s3://training/x")
    assert str(error).startswith(f"S3 at {object_store.endpoint} can't be reached for s3://training/x")
    assert error.transient


def test_endpoint_that_is_no_url(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "nonsense")
    with pytest.raises(s3.S3Error, match="the S3 settings can't be used"):
        s3.make_client()


def test_missing_key(job_store, tmp_path):
    with pytest.raises(s3.NoSuchKey, match=r"s3://training/.*/nothing does not exist"):
        job_store.get_bytes("nothing")
    with pytest.raises(s3.NoSuchKey):
        job_store.get_file("nothing", tmp_path / "x")
    job_store.delete(["nothing"])


def test_large_file_goes_in_parts_and_comes_back(job_store, tmp_path):
    whole = tmp_path / "large"
    whole.write_bytes(bytes(range(256)) * (9 * s3.MULTIPART_BYTES // (4 * 256)))
    job_store.put_file("large", whole)
    location = job_store.location
    parts = s3.make_client().head_object(Bucket=location.bucket, Key=f"{location.prefix}/large", PartNumber=1)
    assert parts["ETag"].strip('"').endswith("-3")
    job_store.get_file("large", tmp_path / "back")
    assert sha256_of(tmp_path / "back") == sha256_of(whole)


@pytest.fixture
def client():
    return s3.make_client()


LARGE = bytes(range(256)) * (9 * PART_BYTES // (4 * 256))


@pytest.mark.parametrize("content", [b"", b"few", LARGE[:PART_BYTES], LARGE])
def test_a_file_comes_with_its_sha256(job_store, tmp_path, content):
    whole = tmp_path / "whole"
    whole.write_bytes(content)
    job_store.put_file("key", whole)
    assert job_store.get_with_sha256("key", tmp_path / "back") == sha256_of(whole)
    assert sha256_of(tmp_path / "back") == sha256_of(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "whole"]


def test_a_download_goes_on_where_its_connection_broke(job_store, client, tmp_path, monkeypatch):
    (tmp_path / "whole").write_bytes(LARGE)
    job_store.put_file("key", tmp_path / "whole")
    get, asked = client.get_object, []

    def breaks(**request):
        answer = get(**request)
        asked.append(request["Range"])
        if len(asked) <= 2:
            read, reads = answer["Body"].read, []

            def read_once(amount):
                if reads:
                    raise ResponseStreamingError(error="connection broken")
                reads.append(amount)
                return read(amount)

            monkeypatch.setattr(answer["Body"], "read", read_once)
        return answer

    monkeypatch.setattr(client, "get_object", breaks)
    sha256 = Store(job_store.location, client).get_with_sha256("key", tmp_path / "back")
    assert sha256 == sha256_of(tmp_path / "back") == sha256_of(tmp_path / "whole")
    assert len(asked) == 3 + 2
    assert len(set(asked)) == len(asked), "nothing that had arrived is fetched again"


def test_a_small_object_takes_one_request_and_one_more_when_the_connection_breaks(
    job_store, client, tmp_path, monkeypatch
):
    job_store.put_bytes("key", b"small" * 1000)
    get, asked = client.get_object, []

    def breaks(**request):
        asked.append(request)
        answer = get(**request)
        if len(asked) == 1:
            monkeypatch.setattr(answer["Body"], "read", failing)
        return answer

    def failing(_):
        raise ResponseStreamingError(error="connection broken")

    monkeypatch.setattr(client, "get_object", breaks)
    monkeypatch.setattr(client, "head_object", None)
    sha256 = Store(job_store.location, client).get_with_sha256("key", tmp_path / "back", small=True)
    assert sha256 == sha256_of(tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"small" * 1000
    assert len(asked) == 2


def test_an_object_that_changes_while_it_is_fetched_is_not_mixed(job_store, client, tmp_path, monkeypatch):
    (tmp_path / "whole").write_bytes(LARGE)
    job_store.put_file("key", tmp_path / "whole")
    (tmp_path / "whole").write_bytes(LARGE[::-1])
    head = client.head_object

    def head_then_change(**request):
        answer = head(**request)
        job_store.put_file("key", tmp_path / "whole")
        return answer

    monkeypatch.setattr(client, "head_object", head_then_change)
    with pytest.raises(s3.Changed):
        Store(job_store.location, client).get_with_sha256("key", tmp_path / "back")
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_a_full_disk_ends_a_download(job_store, tmp_path, monkeypatch):
    (tmp_path / "whole").write_bytes(LARGE)
    job_store.put_file("key", tmp_path / "whole")
    write = os.pwrite

    def full(file, block, at):
        if at + len(block) > PART_BYTES + 10_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, block, at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/back\.part'"):
        job_store.get_with_sha256("key", tmp_path / "back")
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_folders_and_objects_of_a_prefix(job_store):
    for key in ("a/1", "a/2/3", "ab/1", "file"):
        job_store.put_bytes(key, b"x")
    assert job_store.folders() == ["a", "ab"]
    assert [item.key for item in job_store.objects("a")] == ["a/1", "a/2/3"]
    assert [item.key for item in job_store.below("a").objects()] == ["1", "2/3"]


def test_a_given_environment_is_taken_instead_of_the_process_s_own(object_store, job_uri, monkeypatch):
    given = object_store.environment
    for name in given:
        monkeypatch.setenv(name, "http://127.0.0.1:9" if name.startswith("AWS_ENDPOINT") else "other")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    store = open_store(job_uri, given)
    store.below("a").put_bytes("b", b"content")
    assert [item.key for item in store.objects()] == ["a/b"]
    with pytest.raises(s3.S3Error, match=f"does not exist at {object_store.endpoint}"):
        open_store("s3://no-such-bucket", given).folders()


def test_without_an_endpoint_a_given_environment_means_aws(object_store):
    client = s3.make_client(
        {"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    )
    assert client.meta.endpoint_url == "https://s3.eu-west-1.amazonaws.com"


@pytest.mark.parametrize("size", [10, s3.MULTIPART_BYTES + 10])
def test_a_conditional_put_replaces_what_it_names_and_nothing_else(job_store, tmp_path, size):
    path = tmp_path / "file"
    sent: list[int] = []

    def write(letter: bytes, replaces: str) -> str:
        path.write_bytes(letter * size)
        return job_store.put_file("key", path, sent.append, replaces=replaces)

    with pytest.raises(s3.Changed):
        write(b"0", '"0123"')
    assert list(job_store.objects()) == []
    first = write(b"1", ABSENT)
    assert first == job_store.etag("key")
    with pytest.raises(s3.Changed):
        write(b"2", ABSENT)
    second = write(b"3", first)
    with pytest.raises(s3.Changed):
        write(b"4", first)
    job_store.get_file("key", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"3" * size
    assert job_store.get_with_etag("key")[1] == job_store.etag("key") == second
    assert sum(sent) >= 2 * size
    uploads = s3.make_client().list_multipart_uploads(Bucket=job_store.location.bucket)
    assert [u for u in uploads.get("Uploads", []) if u["Key"].startswith(job_store.location.prefix)] == []


def test_what_stores_answer_to_puts(job_store):
    def explained(status: int, code: str) -> s3.S3Error | None:
        answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
        return s3.explain(ClientError(answer, "PutObject"), job_store.uri("key"))

    assert isinstance(explained(412, "PreconditionFailed"), s3.Changed)
    assert isinstance(explained(409, "ConditionalRequestConflict"), s3.Changed)
    assert isinstance(explained(501, "NotImplemented"), s3.NotSupported)
    assert isinstance(explained(400, "KeyTooLongError"), s3.RefusedKey)
    for of_the_way in ("BadDigest", "IncompleteBody", "RequestTimeout"):
        error = explained(400, of_the_way)
        assert error is not None
        assert error.transient
    # AWS, when there is nothing that If-Match could match.
    stubbed = s3.make_client()
    with Stubber(stubbed) as stub:
        stub.add_client_error("put_object", "NoSuchKey", http_status_code=404)
        with pytest.raises(s3.Changed, match="does not exist any more"):
            Store(job_store.location, stubbed).put_bytes("key", b"x", replaces='"0123"')


def failed_tls(cause: Exception) -> s3.S3Error:
    """What is said of a handshake that ended with `cause`, as botocore and urllib3 hand it on."""
    try:
        try:
            raise cause
        except Exception as failed:
            raise SSLError(endpoint_url="https://store:8333", error=failed) from failed
    except SSLError as error:
        explained = s3.explain(error, "s3://training/x", {"AWS_ENDPOINT_URL_S3": "https://store:8333"})
    assert explained is not None
    return explained


@pytest.mark.parametrize(
    ("cause", "transient"),
    [
        (ssl.SSLCertVerificationError(1, "self-signed certificate"), False),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), False),
        (FileNotFoundError(2, "No such file or directory"), False),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), True),
        (ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed"), True),
    ],
)
def test_a_certificate_that_is_not_trusted_is_not_waited_for(cause, transient):
    error = failed_tls(cause)
    assert error.transient is transient
    if not transient:
        assert str(error).startswith("TLS with S3 at https://store:8333 fails for s3://training/x: ")
        assert "AWS_CA_BUNDLE" in str(error)


def test_a_real_certificate_that_is_not_trusted(monkeypatch, tmp_path):
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run(
        [*make, "-keyout", key, "-out", certificate, "-subj", "/CN=x"], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def refuse(listening: socket.socket) -> None:
        while True:
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return  # closed by the test
                with connection, context.wrap_socket(connection, server_side=True):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=refuse, args=(listening,), daemon=True).start()
        given = {
            "AWS_ENDPOINT_URL_S3": f"https://127.0.0.1:{listening.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
        }
        with pytest.raises(s3.S3Error, match="CERTIFICATE_VERIFY_FAILED") as told:
            open_store("s3://training/x", given).folders()
        listening.shutdown(socket.SHUT_RDWR)
    assert not told.value.transient


def test_an_identity_provider_that_does_not_answer_sts_is_tried_again():
    answer = {
        "Error": {"Code": "IDPCommunicationError", "Message": "the provider did not answer"},
        "ResponseMetadata": {"HTTPStatusCode": 400},
    }
    error = s3.explain(ClientError(answer, "AssumeRoleWithWebIdentity"), "s3://training/x")
    assert error is not None
    assert error.transient
