"""The S3 of `dtj run`: SeaweedFS on loopback, shared by all `dtj` commands that run at the same time."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dtj.api.errors import DtjError, TimedOut
from dtj.local import store_keeper
from dtj_trainer.artifacts import s3
from dtj_trainer.contract.distribution import install_line

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

REGION = "us-east-1"
OWN_BUCKET = "dtj-own"
"""The bucket of the readiness check and of `data_copy`. No job uses this bucket."""
START_SECONDS = store_keeper.START_SECONDS + 30.0
"""Seconds to wait for the store. A keeper that gives up does so earlier, and can still report the reason."""
_READABLE_SECONDS = 30.0


class OpenStore:
    """A running S3 server. The server runs as long as any process has `lock_fd` open.

    environment: the AWS variables with which a program reaches the server. lock_fd: an inheritable file descriptor.
    """

    def __init__(self, environment: Mapping[str, str], lock_fd: int) -> None:
        self.environment = dict(environment)
        self.lock_fd = lock_fd

    def close(self) -> None:
        """Release the server. The server ends when no process uses it."""
        if self.lock_fd >= 0:
            os.close(self.lock_fd)
            self.lock_fd = -1

    def __enter__(self) -> OpenStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_store(home: Path, buckets: Sequence[str]) -> OpenStore:
    """Open the object store below `home`, create these buckets, and start the server (about 1 s) if it does not run.

    Raises DtjError if SeaweedFS is not installed or does not start, and TimedOut if the server does not answer.
    """
    folder = home / "s3"
    (folder / "data").mkdir(parents=True, exist_ok=True, mode=0o700)
    users = os.open(folder / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Take the lock before anything else: a running keeper then continues. If the keeper is about to end, the call
        # waits until the keeper has ended.
        fcntl.flock(users, fcntl.LOCK_SH)
        os.set_inheritable(users, True)
        with (folder / "start.lock").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            pair = _credentials(folder)
            environment = _answering(folder, pair)
            if environment is None:
                environment = _started(folder, pair)
                _await_old_objects(environment)
            _make_buckets(environment, buckets)
    except BaseException:
        os.close(users)
        raise
    return OpenStore(environment, users)


def _credentials(folder: Path) -> dict[str, str]:
    """Return the only credentials that the server accepts. The first call creates them."""
    path = folder / "credentials.json"
    if not path.exists():
        pair = {
            "AWS_ACCESS_KEY_ID": "DTJ" + secrets.token_hex(8).upper(),
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
        }
        temporary = path.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(pair))
        temporary.rename(path)
    return dict(json.loads(path.read_text()))


def _answering(folder: Path, pair: Mapping[str, str]) -> dict[str, str] | None:
    """Return the environment of the last started server if the server stores an object, else None."""
    # Check the port first: boto3 retries a closed port many times, and would connect to a foreign server.
    port = store_keeper.running_port(folder)
    if port is None:
        return None
    environment = {
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
        **pair,
        "AWS_REGION": REGION,
    }
    try:
        with s3.sentences(f"s3://{OWN_BUCKET}", environment):
            client = s3.make_client(environment)
            _make_missing(client, [OWN_BUCKET])
            client.put_object(Bucket=OWN_BUCKET, Key="ready", Body=b"")
    except s3.S3Error:
        return None
    return environment


def _started(folder: Path, pair: Mapping[str, str]) -> dict[str, str]:
    """Start a keeper unless one runs, and wait until the server answers."""
    weed, keeper = _weed(), None
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if environment := _answering(folder, pair):
            return environment
        if keeper is None and not _is_kept(folder):
            keeper = _start_keeper(folder, weed, pair)
        if keeper is not None and keeper.poll() is not None:
            raise DtjError(f"the local object store did not start: {_last_line(folder / 'weed.log')}")
        time.sleep(0.05)
    raise TimedOut(
        f"the local object store does not answer after {START_SECONDS:.0f} s",
        f"see the log {folder / 'weed.log'}, and end the process that {folder / 'server.json'} names",
    )


def _await_old_objects(environment: Mapping[str, str]) -> None:
    """Wait until an older object of each bucket can be read, but at most _READABLE_SECONDS.

    A restarted server accepts writes before it has found its old volumes. A lost object must not block the start.
    """
    deadline = time.monotonic() + _READABLE_SECONDS
    while time.monotonic() < deadline:
        try:
            _read_old_objects(environment)
            return
        except s3.S3Error:
            time.sleep(0.1)


def _read_old_objects(environment: Mapping[str, str]) -> None:
    with s3.sentences("s3://", environment):
        client = s3.make_client(environment)
        for bucket in client.list_buckets()["Buckets"]:
            listed = client.list_objects_v2(Bucket=bucket["Name"], MaxKeys=20).get("Contents", [])
            if first := next((item["Key"] for item in listed if item["Size"]), None):
                client.get_object(Bucket=bucket["Name"], Key=first, Range="bytes=0-0")["Body"].read()


def _is_kept(folder: Path) -> bool:
    """Return whether a keeper runs. A keeper restarts a server that crashed."""
    with (folder / "keeper.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _start_keeper(folder: Path, weed: str, pair: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # Pass only these variables. The variable that marks processes of a run must not mark the keeper: the keeper would
    # be ended with the run.
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    with (folder / "weed.log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - this package's own program
            [sys.executable, "-I", store_keeper.__file__, str(folder), weed],
            env={**kept, **pair},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _make_buckets(environment: Mapping[str, str], buckets: Sequence[str]) -> None:
    try:
        with s3.sentences("s3://" + ",".join(buckets), environment):
            _make_missing(s3.make_client(environment), buckets)
    except s3.S3Error as error:
        raise DtjError(f"the buckets of the job can't be created: {error}") from error


def _make_missing(client: S3Client, buckets: Sequence[str]) -> None:
    existing = {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}
    for bucket in dict.fromkeys(buckets):
        if bucket not in existing:
            client.create_bucket(Bucket=bucket)


def _weed() -> str:
    beside = Path(sys.executable).with_name("weed")
    program = str(beside) if beside.exists() else shutil.which("weed")
    if program is None:
        raise DtjError(
            "the program `weed` of SeaweedFS, the object store of local runs, is not installed",
            install_line("local"),
        )
    return program


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1]} (full log: {path})" if lines else f"the log {path} is empty"
