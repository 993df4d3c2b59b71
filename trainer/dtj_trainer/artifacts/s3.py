"""S3: clients from the standard AWS environment, `s3://` URIs, errors as sentences for a user, the retry policy.

Importing this module is cheap: the first call that needs boto3 loads it. Make a client in the process that uses the
client, never before a fork. Threads may share a client.
"""

from __future__ import annotations

import base64
import ipaddress
import math
import os
import random
import re
import threading
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from dtj_trainer import contract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from boto3.s3.transfer import TransferConfig
    from botocore.model import OperationModel
    from mypy_boto3_s3 import S3Client


# The retry policy of everything that talks to S3. Each number is here and nowhere else.
#
# 1. botocore tries a request ATTEMPTS times, with its own backoff.
# 2. The caller repeats what botocore does not: a body that breaks off (BODY_TRIES), and a part of an upload
#    (PART_TRIES), so that the other parts are not sent again.
# 3. A whole step, such as a restore, a pass of uploads or a read of data, is repeated while its error is transient
#    (`S3Error.transient`), until no byte has arrived for a timeout: `retry_transient`, and `artifacts/sync.py`. The
#    delay doubles from FIRST_DELAY_SECONDS to LONGEST_DELAY_SECONDS, with jitter: `Backoff`.
# 4. A conditional put that came after another writer's is decided anew: CLAIM_TRIES, FENCED_PUT_TRIES, END_TRIES.
#
# Other errors are raised at once. A single key that the store refuses is left alone for REFUSED_KEY_SECONDS.
# `data/ranged.py` also asks a second time for a slow answer, which counts as no retry.

CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 60.0
LEAST_READ_TIMEOUT_SECONDS = 5.0
ATTEMPTS = 3
"""How often botocore tries one request, with exponential backoff, before it raises the error."""
BODY_TRIES = 5
"""Requests for a body whose connection breaks. A try resumes a large object where the connection broke."""
PART_TRIES = 8
"""Tries of one part, each with botocore's own retries: with a tenth of the requests throttled, 1 part in 10^8
fails."""
LONGEST_PART_DELAY_SECONDS = 8.0
SYNC_TIMEOUT_SECONDS = 600.0
"""The default of DTJ_SYNC_TIMEOUT_SECONDS: how long a pod waits for a bucket that transfers no byte."""
DATA_TIMEOUT_SECONDS = 600.0
"""Seconds without a received byte after which a read of data is given up."""
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 15.0
FINISHING_DELAY_SECONDS = 2.0
"""The longest delay between two attempts while a caller waits for the last uploads."""
LONGEST_MIRROR_DELAY_SECONDS = 60.0
"""The longest delay before a snapshot that did not arrive completely is fetched again for the evaluator."""
CLAIM_TRIES = 5
"""Compare-and-swaps in a row before a claim is given up. Fewer writers than this start at the same time."""
FENCED_PUT_TRIES = 3
"""The most conditional puts of one object in a row. Writers of earlier attempts may not write any more, so that the
second put usually succeeds."""
END_TRIES = 3
"""Conditional puts in a row before the end of a job stays unrecorded."""
REFUSED_KEY_SECONDS = 60.0
_JITTER = random.Random()  # noqa: S311 - not for secrets
"""A generator of its own: delays must not change the random numbers that the user's program draws from the global
generator."""


# S3Options has what a bucket may require of each request, from the job's variables: encryption, payer, form of URLs.

AddressingStyle = Literal["path", "virtual", "auto"]

_ALLOWED = {
    contract.ENV_S3_SSE: ("AES256", "aws:kms"),
    contract.ENV_S3_SSE_BUCKET_KEY: ("true", "false"),
    contract.ENV_S3_REQUEST_PAYER: ("requester",),
    contract.ENV_S3_ADDRESSING_STYLE: ("path", "virtual", "auto"),
}
_PUTS = {"PutObject", "CreateMultipartUpload", "CopyObject"}
"""The operations that create an object, and therefore set its encryption."""
_CUSTOMER_KEY_BYTES = 32
"""The length of a key of SSE-C, which supports AES-256 only."""


@dataclass(frozen=True)
class S3Options:
    """`put` holds parameters of operations that create an object, `every` those of any operation that has the
    parameter.
    """

    put: Mapping[str, object] = field(default_factory=dict)
    every: Mapping[str, object] = field(default_factory=dict, repr=False)
    addressing_style: AddressingStyle | None = None
    """None: the AWS configuration decides; without it, a custom endpoint gets `path`."""

    @property
    def has_customer_key(self) -> bool:
        """Whether requests bring the key of SSE-C along, which must not be sent in clear text."""
        return "SSECustomerKey" in self.every

    def add_to(self, client: S3Client) -> None:
        """Add these parameters to all requests of `client`, including the requests of boto3's own transfers."""
        if not self.put and not self.every:
            return

        def with_options(params: dict[str, Any], model: OperationModel, **_: object) -> None:
            wanted = {**self.every, **(self.put if model.name in _PUTS else {})}
            shape = model.input_shape
            known = shape.members if shape is not None else {}
            for name in wanted.keys() & known.keys():
                params.setdefault(name, wanted[name])

        client.meta.events.register("provide-client-params.s3", with_options)


def read_options(environment: Mapping[str, str]) -> S3Options:
    """Read the options from an environment. Raises ValueError with a sentence that names the variable."""
    values = {name: environment.get(name, "").strip() for name in contract.S3_SETTINGS}
    for name, allowed in _ALLOWED.items():
        if values[name] and values[name] not in allowed:
            raise ValueError(f"{name} must be {_either(allowed)}, not {values[name]!r}")
    encryption = values[contract.ENV_S3_SSE]
    for name in (contract.ENV_S3_SSE_KMS_KEY_ID, contract.ENV_S3_SSE_BUCKET_KEY):
        if values[name] and encryption != "aws:kms":
            raise ValueError(f"{name} needs {contract.ENV_S3_SSE} to be aws:kms")
    bucket_key = values[contract.ENV_S3_SSE_BUCKET_KEY]
    put = {
        "ServerSideEncryption": encryption,
        "SSEKMSKeyId": values[contract.ENV_S3_SSE_KMS_KEY_ID],
        "BucketKeyEnabled": bucket_key == "true" if bucket_key else None,
    }
    customer_key = _customer_key(values[contract.ENV_S3_SSE_CUSTOMER_KEY])
    if customer_key and encryption:
        raise ValueError(
            f"{contract.ENV_S3_SSE_CUSTOMER_KEY} can't be used with {contract.ENV_S3_SSE}: remove one of them"
        )
    every = {
        "RequestPayer": values[contract.ENV_S3_REQUEST_PAYER],
        "SSECustomerAlgorithm": "AES256" if customer_key else None,
        "SSECustomerKey": customer_key,
    }
    style = values[contract.ENV_S3_ADDRESSING_STYLE] or None
    return S3Options(_given(put), _given(every), cast("AddressingStyle | None", style))


def _customer_key(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = None
    if key is None or len(key) not in (0, _CUSTOMER_KEY_BYTES):
        # The sentence does not contain the value, which is a secret.
        raise ValueError(f"{contract.ENV_S3_SSE_CUSTOMER_KEY} must be {_CUSTOMER_KEY_BYTES} bytes in base64")
    return key


def _given(parameters: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in parameters.items() if value not in (None, "", b"")}


def _either(words: tuple[str, ...]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


MEBIBYTE = 1024 * 1024
MULTIPART_BYTES = 16 * MEBIBYTE
"""Larger objects are sent and fetched in parts of this size."""

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
        # Do not sign the payload over http: botocore does not sign the payload over https either. The CRC32 of each
        # request detects damage, and a SHA-256 of all payload costs as much as the rest of the upload.
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
    """Return the seconds to wait for an answer, so few that all tries end before DTJ_SYNC_TIMEOUT_SECONDS."""
    try:
        patience = float(values.get(contract.ENV_SYNC_TIMEOUT_SECONDS) or math.inf)
    except ValueError:  # Ignore an invalid value: dtj-launch reports it.
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
        return RefusedKey(f"S3 does not accept the parameters of a request for {uri}: {error}")
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
    # botocore does not convert the error of urllib3 if the answer to a list, or another small answer, is cut off.
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


# The following functions read the answer of a store from an exception of boto3.

_CONDITION_REFUSED = {"InvalidArgument", "InvalidRequest", "NotImplemented"}
"""Answers with status 400 of stores that do not know the condition of a put. AWS answers with status 501."""


def status_of(error: Exception) -> int | None:
    """Return the status of the HTTP answer that is the cause of an error; None without an answer."""
    answer = getattr(error, "response", {}).get("ResponseMetadata", {})
    status: int | None = answer.get("HTTPStatusCode")
    return status


def is_out_of_range(error: Exception) -> bool:
    """Return whether the store has no bytes in the range of the request."""
    return status_of(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE


def is_condition_refused(error: Exception) -> bool:
    """Return whether the store does not know the condition of the put."""
    code = getattr(error, "response", {}).get("Error", {}).get("Code")
    return status_of(error) == HTTPStatus.BAD_REQUEST and code in _CONDITION_REFUSED


Result = TypeVar("Result")


class Deadline:
    """A deadline `timeout` seconds after the start; each rise of `progress`, if given, starts the time again.

    `until` returns the seconds until a deadline that nothing moves.
    """

    def __init__(
        self,
        timeout: float,
        progress: Callable[[], int] | None,
        until: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._timeout = timeout
        self._until = until
        self._progress = progress
        self._most = progress() if progress else 0
        self._deadline = time.monotonic() + timeout

    def left(self) -> float:
        """Return the seconds until the deadline."""
        if self._progress and (now := self._progress()) > self._most:
            self._most = now
            self._deadline = time.monotonic() + self._timeout
        return min(self._deadline - time.monotonic(), self._until())


class Backoff:
    """The delay before the next attempt, in seconds. The delay doubles with each failure, up to a limit."""

    def __init__(self, longest: float = LONGEST_DELAY_SECONDS) -> None:
        self._longest = longest
        self._failures = 0

    def next_delay(self) -> float:
        """Count one more failure, and return a random time between half of the current delay and all of it."""
        delay = min(self._longest, FIRST_DELAY_SECONDS * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return delay * _JITTER.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again from the shortest delay."""
        self._failures = 0


def retry_transient(
    call: Callable[[], Result],
    *,
    timeout: float,
    progress: Callable[[], int] | None = None,
    on_wait: Callable[[S3Error, float], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Call until it succeeds, for at most `timeout` seconds without progress.

    An error that is not transient is raised at once. `progress` returns a number that grows with the work of the
    calls, such as the bytes received. `on_wait` gets each error and the seconds until the next attempt. `sleep` may
    raise to end the wait.
    """
    deadline = Deadline(timeout, progress)
    backoff = Backoff()
    while True:
        try:
            return call()
        except S3Error as error:
            left = deadline.left()
            if not error.transient or left <= 0:
                raise
            delay = min(backoff.next_delay(), left)
            on_wait(error, delay)
            sleep(delay)


# Pace limits the load of uploads on network and processors: gentle while a program runs, and full speed after its
# end.

CONNECTIONS = 8
"""Parallel parts of one upload when no program runs beside it."""
CONNECTIONS_BESIDE_PROGRAM = 2
BYTES_PER_SECOND = 40e6
"""The limit of all uploads of a process beside a program. Where 500 MB cost 1 s of a core, this is 8 % of a core."""


class Reservations:
    """A rate limit in bytes a second. A sender reserves bytes and learns how long to wait."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    def reserve(self, amount: int, now: float) -> float:
        """Reserve the next slot for `amount` bytes; return the seconds until it begins. `now`: monotonic seconds."""
        start = max(now, self._free_at)
        self._free_at = start + amount / self._rate
        return start - now


class Pace:
    """The parallel parts of each upload, and the bytes a second of all uploads of a process. Thread-safe."""

    def __init__(self, *, beside_program: bool = False, bytes_per_second: float = 0.0) -> None:
        """`beside_program`: gentle until `hurry`. `bytes_per_second`: the limit until `hurry`; 0 means no limit."""
        self._hurried = threading.Event()
        self._closed = threading.Event()
        self._reservations = Reservations(bytes_per_second) if bytes_per_second else None
        self._lock = threading.Lock()
        if not beside_program:
            self._hurried.set()

    @property
    def gentle(self) -> bool:
        """Return whether a program runs beside the uploads."""
        return not self._hurried.is_set()

    @property
    def connections(self) -> int:
        """Return how many parts of one upload may be in flight."""
        return CONNECTIONS_BESIDE_PROGRAM if self.gentle else CONNECTIONS

    @property
    def closed(self) -> bool:
        """Return whether `close` was called, so that nothing more is sent."""
        return self._closed.is_set()

    def take(self, amount: int) -> None:
        """Wait until `amount` more bytes may be sent."""
        if self._reservations and self.gentle:
            with self._lock:
                delay = self._reservations.reserve(amount, time.monotonic())
            self._hurried.wait(delay)

    def rest(self, seconds: float) -> None:
        """Wait before another try. `close` ends the wait."""
        self._closed.wait(seconds)

    def hurry(self) -> None:
        """Upload at full speed from now on. Call it after the program has ended and the sync loops were informed.

        An upload in progress raises HandedOver, so that the loop's next thread, which has normal priority, sends the
        rest.
        """
        self._hurried.set()

    def ease(self) -> None:
        """Be gentle again, because a program runs again."""
        self._hurried.clear()

    def close(self) -> None:
        """Stop all sending."""
        self._closed.set()
        self._hurried.set()
