"""S3 clients from the standard AWS environment, `s3://` URIs, and errors as sentences that tell a user what to do.

Importing this module is cheap: the first call that needs boto3 loads it. Make a client in the process that uses the
client, never before a fork. Threads may share a client.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from dtj_trainer import contract
from dtj_trainer.artifacts.s3_options import read_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boto3.s3.transfer import TransferConfig
    from mypy_boto3_s3 import S3Client

MEBIBYTE = 1024 * 1024
MULTIPART_BYTES = 16 * MEBIBYTE
"""Larger objects are sent and fetched in parts of this size."""
CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 60.0
LEAST_READ_TIMEOUT_SECONDS = 5.0
ATTEMPTS = 3
"""How often botocore tries one request, with exponential backoff, before it raises the error."""

_BUCKET = re.compile(rf"(?P<bucket>{contract.S3_BUCKET})(/(?P<prefix>.*))?", re.DOTALL)

_SECRET_CODES = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthorizationHeaderMalformed"}
_TOKEN_CODES = {"ExpiredToken", "InvalidToken", "ExpiredTokenException", "TokenRefreshRequired"}
_DENIED_CODES = {"AccessDenied", "403", "Forbidden", "AllAccessDisabled", "AccountProblem"}
_MISSING_KEY_CODES = {"NoSuchKey", "404", "NotFound"}
_CHANGED_CODES = {"PreconditionFailed", "412", "ConditionalRequestConflict"}
TRANSIENT_CODES = {
    "BadDigest",
    "IDPCommunicationError",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "RequestTimeTooSkewed",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "XAmzContentChecksumMismatch",
}


_CUT_OFF_REASONS = {"TLSV1_ALERT_INTERNAL_ERROR", "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"}
"""OpenSSL's names of TLS errors that may be transient."""


class S3Location(NamedTuple):
    """A bucket and a key or key prefix in it, without slashes at either end of the prefix."""

    bucket: str
    prefix: str

    @property
    def uri(self) -> str:
        """The location as `s3://bucket/prefix`."""
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    def __truediv__(self, name: str) -> S3Location:
        """The location `name` below this one."""
        return S3Location(self.bucket, f"{self.prefix}/{name}".strip("/"))


class S3Error(Exception):
    """A failed S3 operation, described in one sentence without secrets.

    `transient`: the same call may succeed later (the endpoint is down, throttled or slow).
    """

    def __init__(self, sentence: str, *, transient: bool) -> None:
        super().__init__(sentence)
        self.transient = transient


class LastingS3Error(S3Error):
    """An error that is not transient: the same call will fail again."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, transient=False)


class RefusedKey(LastingS3Error):
    """The bucket refuses a request about one key, for example by its policy. It may accept other keys."""


class NoSuchKey(LastingS3Error):
    """The object does not exist, although its bucket answered."""


class DamagedObject(LastingS3Error):
    """The received bytes do not match the object's checksum."""


class Changed(LastingS3Error):
    """The object does not match the condition of a conditional request."""


class NotSupported(LastingS3Error):
    """The store does not support a kind of request, for example conditional requests."""


def parse_s3_uri(uri: str) -> S3Location:
    """Split `s3://bucket/some/prefix`. The bucket may be `tenant:bucket`, or the ARN of an access point.

    Raises ValueError: the URI has another scheme, no bucket, or an invalid bucket name.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme != "s3":
        raise ValueError(f"{uri!r} is not an S3 URI: it must begin with s3://")
    found = _BUCKET.fullmatch(rest)
    if found is None:
        raise ValueError(f"{uri!r} names no valid bucket: {rest.partition('/')[0]!r}")
    return S3Location(found["bucket"], (found["prefix"] or "").strip("/"))


def _bucket_of(uri: str) -> str:
    try:
        return parse_s3_uri(uri).bucket
    except ValueError:  # The URI names several buckets, or none.
        return uri.removeprefix("s3://").partition("/")[0]


Environment = Mapping[str, str]
"""The standard AWS variables (AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID, AWS_REGION and so on) and S3_SETTINGS."""


def endpoint(environment: Environment | None = None) -> str | None:
    """Return the custom S3 endpoint of an environment (default: this process's); None means AWS."""
    values = os.environ if environment is None else environment
    return values.get("AWS_ENDPOINT_URL_S3") or values.get("AWS_ENDPOINT_URL") or None


def make_client(environment: Environment | None = None) -> S3Client:
    """Make a client with timeouts, retries and the options of `contract.S3_SETTINGS`, and without a proxy for
    loopback.

    If neither an option nor the AWS configuration file sets the addressing style, a custom endpoint gets path-style
    URLs. Endpoint, region and credentials come from `environment` (default: this process's); boto3 searches its usual
    places for credentials that `environment` does not have. Raises S3Error: a setting can't be used.
    """
    import boto3
    import botocore.config
    import botocore.exceptions
    import botocore.handlers
    import botocore.session

    values = os.environ if environment is None else environment
    url = endpoint(environment)
    region = values.get("AWS_REGION") or values.get("AWS_DEFAULT_REGION")
    if region is None and url is not None:
        region = "us-east-1"
    try:
        options = read_options(values)
        if options.has_customer_key and (url or "").startswith("http://"):
            raise ValueError(f"{contract.ENV_S3_SSE_CUSTOMER_KEY} needs an https:// endpoint, not {url}")
        core = botocore.session.Session()
        configured = core.get_config_variable("s3") or {}
        style = options.addressing_style or configured.get("addressing_style") or ("path" if url else "auto")
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        raise _unusable(error) from error
    config = botocore.config.Config(
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=_read_timeout(values),
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        max_pool_connections=16,
        tcp_keepalive=True,
        # Do not sign the payload over http either, as botocore does not over https. The CRC32 of each request detects
        # damage, and a SHA-256 of all payload costs as much as the rest of the upload.
        s3={"addressing_style": style, "payload_signing_enabled": False},
        proxies={} if url and _is_loopback(url) else None,
        # A given environment without an endpoint means AWS, even if this process's own variables set an endpoint.
        ignore_configured_endpoint_urls=environment is not None,  # type: ignore[call-arg]  # not in the stubs
    )
    own = environment or {}
    try:
        session = boto3.session.Session(
            aws_access_key_id=own.get("AWS_ACCESS_KEY_ID"),
            aws_secret_access_key=own.get("AWS_SECRET_ACCESS_KEY"),
            aws_session_token=own.get("AWS_SESSION_TOKEN"),
            botocore_session=core,
        )
        client = session.client("s3", region_name=region, endpoint_url=url, config=config)
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        raise _unusable(error) from error
    # botocore's check refuses `tenant:bucket`. parse_s3_uri has validated the name.
    client.meta.events.unregister("before-parameter-build.s3", botocore.handlers.validate_bucket_name)
    options.add_to(client)
    return client


def _read_timeout(values: Environment) -> float:
    """Return the seconds to wait for an answer. After all tries, a pod still knows in time that a store is silent."""
    try:
        patience = float(values.get(contract.ENV_SYNC_TIMEOUT_SECONDS) or math.inf)
    except ValueError:  # dtj-launch names the variable.
        patience = math.inf
    return min(READ_TIMEOUT_SECONDS, max(LEAST_READ_TIMEOUT_SECONDS, patience / (2 * ATTEMPTS)))


def _unusable(error: Exception) -> LastingS3Error:
    return LastingS3Error(f"the S3 settings can't be used: {error}")


def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # The host is a name, or the URL is invalid.
        return False


def transfer_config() -> TransferConfig:
    """Return how boto3 transfers large objects: in parts, with threads of its own."""
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(
        multipart_threshold=MULTIPART_BYTES,
        multipart_chunksize=MULTIPART_BYTES,
        max_concurrency=4,
        preferred_transfer_client="classic",
    )


def explain(error: Exception, uri: str, environment: Environment | None = None) -> S3Error | None:
    """Convert a boto3 error at `uri` to an S3Error; None when it is not an error of S3.

    `environment` is the one that the client was made from.
    """
    import boto3.exceptions
    import botocore.exceptions as failures
    import urllib3.exceptions

    where = endpoint(environment) or "AWS S3"
    bucket = _bucket_of(uri)
    if isinstance(error, S3Error):
        return error
    if isinstance(error, boto3.exceptions.Boto3Error):
        # S3UploadFailedError and similar errors carry the cause as their context.
        cause = error.__cause__ or error.__context__
        found = explain(cause, uri, environment) if isinstance(cause, Exception) else None
        return found or S3Error(f"S3 at {where} failed for {uri}: {error}", transient=True)
    if isinstance(error, failures.ClientError):
        return _explain_answer(error, uri, bucket, where)
    if isinstance(error, (failures.NoCredentialsError, failures.PartialCredentialsError)):
        return S3Error(
            f"no S3 credentials for {uri}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run under a "
            "service account that has a role",
            transient=False,
        )
    if isinstance(error, failures.NoRegionError):
        return S3Error(f"no region for {uri}: set AWS_REGION", transient=False)
    if isinstance(error, failures.ParamValidationError):
        return RefusedKey(f"S3 can't take {uri}: {error}")
    if isinstance(error, failures.FlexibleChecksumError):
        return DamagedObject(f"{uri} is damaged (its checksum in the bucket differs)")
    if isinstance(error, failures.CredentialRetrievalError):
        return S3Error(f"the S3 credentials for {uri} could not be fetched: {error}", transient=True)
    if isinstance(error, failures.SSLError) and not _is_cut_off(error):
        return S3Error(
            f"TLS with S3 at {where} fails for {uri}: {_first_line(error)}. Check the endpoint, and AWS_CA_BUNDLE: "
            "the file with the certificates of the store's CA",
            transient=False,
        )
    # botocore passes on the error of urllib3 where an answer without a file, such as a list, is cut off.
    if isinstance(error, (failures.HTTPClientError, failures.ConnectionError, urllib3.exceptions.HTTPError)):
        return S3Error(f"S3 at {where} can't be reached for {uri}: {_first_line(error)}", transient=True)
    if isinstance(error, failures.BotoCoreError):
        return S3Error(f"S3 at {where} failed for {uri}: {_first_line(error)}", transient=True)
    return None


def _is_cut_off(error: BaseException) -> bool:
    """Return whether TLS failed because the connection broke, and not because the peers can't agree."""
    import ssl

    causes = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    return any(
        isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError))
        or getattr(cause, "reason", None) in _CUT_OFF_REASONS
        for cause in causes
    )


def _explain_answer(error: object, uri: str, bucket: str, where: str) -> S3Error:
    import botocore.exceptions as failures

    assert isinstance(error, failures.ClientError)
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "NoSuchBucket":
        return S3Error(f"the bucket {bucket} does not exist at {where}", transient=False)
    if code in _MISSING_KEY_CODES:
        return NoSuchKey(f"{uri} does not exist")
    if code in _SECRET_CODES:
        return S3Error(
            f"S3 at {where} refuses the credentials for {uri}: wrong access key or secret ({code})",
            transient=False,
        )
    if code in _TOKEN_CODES:
        return S3Error(f"the S3 session token for {uri} is expired or invalid ({code})", transient=False)
    if code in _DENIED_CODES:
        return RefusedKey(f"access to {uri} at {where} is denied ({code})")
    if code in {"PermanentRedirect", "IllegalLocationConstraintException"}:
        return S3Error(f"the bucket {bucket} is in another region: set AWS_REGION ({code})", transient=False)
    sentence = f"S3 at {where} answered {status or ''} {code} for {uri}: {_first_line(error)}"
    if code in _CHANGED_CODES:
        return Changed(sentence)
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return NotSupported(sentence)
    if status >= 500 or status == 429 or code in TRANSIENT_CODES:
        return S3Error(sentence, transient=True)
    return RefusedKey(sentence)


@contextmanager
def sentences(uri: str, environment: Environment | None = None) -> Iterator[None]:
    """Convert boto3's errors in this block to `S3Error`s about `uri`."""
    try:
        yield
    except Exception as error:
        explained = explain(error, uri, environment)
        if explained is None or explained is error:
            raise
        raise explained from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
