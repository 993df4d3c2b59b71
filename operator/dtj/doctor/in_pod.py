"""What `dtj doctor` runs in its pod, by `python -c`, in the job's image: DNS, and S3 as the job reaches it.

Standard library, and what the image has of dtj_trainer or boto3. Writes what it saw as JSON.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

Found = list[dict[str, str]]
ARTIFACTS, DATA, KEY = (
    os.environ.get(f"DTJ_DOCTOR_{name}", "") for name in ("ARTIFACTS_URI", "DATA_URI", "KEY")
)
_SHORT = 900
"""Characters of one message: the kubelet passes 4096 bytes of all of them on."""


class _Trainer:
    """S3 through dtj_trainer, whose errors are sentences."""

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
    of_bucket = 2 if words[0].startswith("arn:") else 1  # an access point's ARN has a slash
    bucket, prefix = "/".join(words[:of_bucket]), "/".join(words[of_bucket:]).strip("/")
    return bucket, prefix + "/" if prefix else ""


def _tried(found: Found, name: str, what: str, call: Callable[[], object], verdict: str = "failed") -> object:
    """The result of the call. A failure of any kind is added to `found` with this verdict."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - each library raises other exceptions, and the user needs all of them
        said = " ".join(str(error).split())[:_SHORT]
        found.append({"name": name, "verdict": verdict, "message": f"{what}: {said}"})
        return None


def _look() -> Found:
    found: Found = []
    host = "kubernetes.default.svc"
    if _tried(found, "DNS", f"{host} is not found", lambda: socket.getaddrinfo(host, 443)):
        found.append({"name": "DNS", "verdict": "ok", "message": f"a pod resolves {host}"})
    if not ARTIFACTS and not DATA:
        return found
    store: _Trainer | _Boto
    try:
        store = _Trainer()
    except ImportError:
        try:
            store = _Boto()
        except ImportError:
            message = "the image has neither dtj_trainer nor boto3, so S3 can't be tried in it"
            return [*found, {"name": "S3 artifacts", "verdict": "warning", "message": message}]
    if ARTIFACTS:
        _try_artifacts(found, store)
    if DATA:
        there = _tried(found, "S3 data", f"{DATA} can't be listed", lambda: [store.has_any(DATA)])
        if there == [False]:
            found.append({"name": "S3 data", "verdict": "failed", "message": f"nothing is below {DATA}"})
        elif there:
            found.append({"name": "S3 data", "verdict": "ok", "message": f"a pod lists {DATA}"})
    return found


def _try_artifacts(found: Found, store: _Trainer | _Boto) -> None:
    name, told = "S3 artifacts", len(found)
    _tried(found, name, f"an object can't be written below {ARTIFACTS}", lambda: store.put(ARTIFACTS, KEY))
    if len(found) == told:
        what = f"an object can't be deleted below {ARTIFACTS}, so that old checkpoints stay there"
        _tried(found, name, what, lambda: store.delete(ARTIFACTS, KEY), verdict="warning")
    if len(found) == told:
        message = f"a pod writes and deletes below {ARTIFACTS}"
        found.append({"name": name, "verdict": "ok", "message": message})


if __name__ == "__main__":
    where = os.environ.get("DTJ_DOCTOR_REPORT", "/dev/termination-log")
    Path(where).write_text(json.dumps(_look()))
