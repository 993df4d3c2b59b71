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
_SHORT = 900
"""Maximum length of a message in characters. The kubelet keeps 4096 bytes of the whole termination message."""


class _Trainer:
    """S3 through dtj_trainer, whose errors are sentences for users."""

    def __init__(self) -> None:
        from dtj_trainer.artifacts.store import open_store

        self._open = open_store

    def put(self, uri: str, key: str) -> None:
        self._open(uri).put_bytes(key, b"dtj doctor")

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
        self._client.put_object(Bucket=bucket, Key=prefix + key, Body=b"dtj doctor")

    def delete(self, uri: str, key: str) -> None:
        bucket, prefix = _split(uri)
        self._client.delete_object(Bucket=bucket, Key=prefix + key)

    def has_any(self, uri: str) -> bool:
        bucket, prefix = _split(uri)
        return bool(self._client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)["KeyCount"])


def _split(uri: str) -> tuple[str, str]:
    words = uri.removeprefix("s3://").split("/")
    of_bucket = 2 if words[0].startswith("arn:") else 1  # the ARN of an access point contains a slash
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
    if len(results) == before:
        what = f"an object can't be deleted below {ARTIFACTS}, so that old checkpoints stay there"
        _tried(results, name, what, lambda: store.delete(ARTIFACTS, KEY), verdict="warning")
    if len(results) == before:
        message = f"a pod writes and deletes below {ARTIFACTS}"
        results.append({"name": name, "verdict": "ok", "message": message})


if __name__ == "__main__":
    where = os.environ.get("DTJ_DOCTOR_REPORT", "/dev/termination-log")
    Path(where).write_text(json.dumps(_test()))
