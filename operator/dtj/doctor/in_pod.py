"""The program of the test pod of `dtj doctor`: test DNS and S3 from the job's image, and write the results as JSON.

`python -c` runs this file. It needs the standard library only, and uses dtj_trainer or boto3 if the image has them.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

Results = list[dict[str, str]]
ARTIFACTS, DATA, KEY = (
    os.environ.get(f"DTJ_DOCTOR_{name}", "") for name in ("ARTIFACTS_URI", "DATA_URI", "KEY")
)
_SHORT = 700
"""Maximum length of a message in characters. The kubelet keeps 4096 bytes of the whole termination message."""
_CONTENT = b"dtj doctor"
_IMPOSSIBLE = {"If-None-Match": "*", "If-Match": f'"{"0" * 32}"'}
"""Conditions that a put over the doctor's own object does not fulfil. No object has this ETag."""
_CHANGED = {"PreconditionFailed", "412", "ConditionalRequestConflict"}
_REFUSED = {"InvalidArgument", "InvalidRequest", "NotImplemented"}
"""Error codes of stores that honour a condition (_CHANGED), and of stores that do not, with status 400 (_REFUSED).
dtj_trainer has the same codes."""


class _Trainer:
    """S3 through dtj_trainer, whose errors are sentences for users."""

    def __init__(self) -> None:
        from dtj_trainer.artifacts.store import open_store

        self._open = open_store

    def put(self, uri: str, key: str) -> None:
        self._open(uri).put_bytes(key, _CONTENT)

    def honours(self, uri: str, key: str, condition: str) -> bool:
        from dtj_trainer.artifacts.s3 import Changed, NotSupported

        try:
            self._open(uri).put_bytes(key, _CONTENT, replaces=_IMPOSSIBLE[condition])
        except Changed:
            return True
        except NotSupported:
            return False
        return False

    def delete(self, uri: str, key: str) -> None:
        self._open(uri).delete([key])

    def has_any(self, uri: str) -> bool:
        return next(self._open(uri).objects(), None) is not None


class _Boto:
    """S3 through boto3."""

    def __init__(self) -> None:
        import boto3
        from botocore.config import Config

        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3")
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=endpoint,
            config=Config(
                connect_timeout=5,
                retries={"total_max_attempts": 2},
                s3={"addressing_style": "path" if endpoint else "auto"},
            ),
        )

    def put(self, uri: str, key: str) -> None:
        bucket, prefix = _split(uri)
        self._client.put_object(Bucket=bucket, Key=prefix + key, Body=_CONTENT)

    def honours(self, uri: str, key: str, condition: str) -> bool:
        from botocore.exceptions import ClientError

        bucket, prefix = _split(uri)
        given = {condition.replace("-", ""): _IMPOSSIBLE[condition]}
        try:
            self._client.put_object(Bucket=bucket, Key=prefix + key, Body=_CONTENT, **given)
        except ClientError as error:
            status, code = (
                error.response["ResponseMetadata"]["HTTPStatusCode"],
                error.response["Error"]["Code"],
            )
            if code in _CHANGED:
                return True
            if status != 501 and not (status == 400 and code in _REFUSED):
                raise
        return False

    def delete(self, uri: str, key: str) -> None:
        bucket, prefix = _split(uri)
        self._client.delete_object(Bucket=bucket, Key=prefix + key)

    def has_any(self, uri: str) -> bool:
        bucket, prefix = _split(uri)
        return bool(self._client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)["KeyCount"])


def _split(uri: str) -> tuple[str, str]:
    words = uri.removeprefix("s3://").split("/")
    # The bucket may be the ARN of an access point, with a slash.
    of_bucket = 2 if words[0].startswith("arn:") else 1
    bucket, prefix = "/".join(words[:of_bucket]), "/".join(words[of_bucket:]).strip("/")
    return bucket, prefix + "/" if prefix else ""


def _tried(
    results: Results, name: str, what: str, call: Callable[[], object], verdict: str = "failed"
) -> object:
    """Return the result of the call. Any exception of the call becomes a result with this verdict."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - each library has its own exceptions, and the user must see all of them
        reason = " ".join(str(error).split())[:_SHORT]
        results.append({"name": name, "verdict": verdict, "message": f"{what}: {reason}"})
        return None


def _test() -> Results:
    results: Results = []
    host = "kubernetes.default.svc"
    if _tried(results, "DNS", f"{host} is not found", lambda: socket.getaddrinfo(host, 443)):
        results.append({"name": "DNS", "verdict": "ok", "message": f"a pod resolves {host}"})
    if not ARTIFACTS and not DATA:
        return results
    store: _Trainer | _Boto
    try:
        store = _Trainer()
    except ImportError:
        try:
            store = _Boto()
        except ImportError:
            message = "the image has neither dtj_trainer nor boto3, so S3 can't be tested"
            return [*results, {"name": "S3 artifacts", "verdict": "warning", "message": message}]
    if ARTIFACTS:
        _test_artifacts(results, store)
    if DATA:
        has_any = _tried(results, "S3 data", f"{DATA} can't be listed", lambda: [store.has_any(DATA)])
        if has_any == [False]:
            results.append(
                {"name": "S3 data", "verdict": "failed", "message": f"there is no object below {DATA}"}
            )
        elif has_any:
            results.append({"name": "S3 data", "verdict": "ok", "message": f"a pod lists {DATA}"})
    return results


def _test_artifacts(results: Results, store: _Trainer | _Boto) -> None:
    name, before = "S3 artifacts", len(results)
    _tried(results, name, f"an object can't be written below {ARTIFACTS}", lambda: store.put(ARTIFACTS, KEY))
    if len(results) > before:
        return
    conditions = _test_conditions(store)
    what = f"an object can't be deleted below {ARTIFACTS}, so that old checkpoints stay there"
    _tried(results, name, what, lambda: store.delete(ARTIFACTS, KEY), verdict="warning")
    if len(results) == before:
        message = f"a pod writes and deletes below {ARTIFACTS}"
        results.append({"name": name, "verdict": "ok", "message": message})
    results += conditions


def _test_conditions(store: _Trainer | _Boto) -> Results:
    """Test whether puts over the doctor's object are refused when their condition does not hold.

    The trainer's fence between attempts needs both conditions (dtj_trainer.artifacts.fence).
    """
    name, results = "S3 conditions", Results()
    honoured = _tried(
        *(results, name, f"conditions of a put can't be tested below {ARTIFACTS}"),
        lambda: {condition: store.honours(ARTIFACTS, KEY, condition) for condition in _IMPOSSIBLE},
        verdict="warning",
    )
    if not isinstance(honoured, dict):
        return results
    ignored = [condition for condition, is_honoured in honoured.items() if not is_honoured]
    if not ignored:
        message = f"the store of {ARTIFACTS} honours {' and '.join(honoured)}"
        return [{"name": name, "verdict": "ok", "message": message}]
    message = (
        f"the store of {ARTIFACTS} does not honour {' and '.join(ignored)} of a put, so that a pod from a lost node "
        "that reconnects may replace one file outside of checkpoints/"
    )
    return [{"name": name, "verdict": "warning", "message": message}]


if __name__ == "__main__":
    where = os.environ.get("DTJ_DOCTOR_REPORT", "/dev/termination-log")
    Path(where).write_text(json.dumps(_test()))
