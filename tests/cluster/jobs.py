"""Jobs of the cluster tests and the demo: creation, waiting, and reading of artifacts."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import boto3
import yaml
from botocore.config import Config

from tests import stub_training
from tests.cluster import api_calls
from tests.cluster.api_calls import KubectlError
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "manifests/examples/fashion-mnist-horovod.yaml"
PS_EXAMPLE = ROOT / "manifests/examples/fashion-mnist-ps.yaml"
TORCH_EXAMPLE = ROOT / "manifests/examples/fashion-mnist-ddp.yaml"
SYSTEM = "dtj-system"
Manifest = dict[str, Any]
T = TypeVar("T")


def kubectl(*words: str, stdin: str | None = None, timeout: float = 60) -> str:
    """Standard output of a kubectl command. Raises KubectlError with its standard error.

    `timeout` is in seconds of an idle machine.
    """
    done = subprocess.run(
        ["kubectl", *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout * PATIENCE,
    )
    if done.returncode:
        raise KubectlError(done.stderr.strip())
    return done.stdout


def until(what: str, get: Callable[[], T | None], seconds: float, every: float | None = None) -> T:
    """The first value of `get` that is neither None nor False; AssertionError when there is none in time.

    `seconds` are those of an idle machine, here and in all that waits by this function. `every`: the pause in seconds
    between two looks (default: a twentieth of the time so far, from 0.1 s to 0.5 s).
    """
    seconds *= PATIENCE
    begun = time.monotonic()
    while True:
        value = get()
        if value is not None and value is not False:
            return value
        waited = time.monotonic() - begun
        assert waited < seconds, f"waited {seconds:.0f} s for {what}"
        time.sleep(every or min(max(waited / 20, 0.1), 0.5))


def with_script() -> Manifest:
    """A pod template whose trainer has the ConfigMap `script` of its namespace as /app."""
    return {
        "spec": {
            "containers": [{"name": "trainer", "volumeMounts": [{"name": "script", "mountPath": "/app"}]}],
            "volumes": [{"name": "script", "configMap": {"name": "script"}}],
        }
    }


def s3_client() -> Any:
    """A client of the cluster's object store, from the exports of `make cluster`."""
    return boto3.client(
        "s3",
        endpoint_url=os.environ["DTJ_TEST_S3_ENDPOINT"],
        region_name="us-east-1",
        config=Config(proxies={}, connect_timeout=2, retries={"total_max_attempts": 3}),
    )


def example(name: str, file: Path = EXAMPLE, *, exports: bool = False, **spec: Any) -> Manifest:
    """An example job under another name, on the local object store, with other fields of spec.

    `exports`: whether a built-in program exports its model, which takes seconds.
    """
    job: Manifest = yaml.safe_load(file.read_text())
    job["metadata"]["name"] = name
    job["spec"]["artifacts"]["endpoint"] = os.environ["DTJ_TEST_S3_ENDPOINT"]
    job["spec"].update(spec)
    if not exports and "dtj_trainer.programs." in job["spec"]["command"][-1]:
        job["spec"]["args"] = [*job["spec"]["args"], "--no-export"]
    return yielding(job)


def yielding(job: Manifest) -> Manifest:
    """The job with MPI ranks that leave their processor to others while they wait: other tests run beside them."""
    job["spec"].setdefault("env", []).append({"name": "OMPI_MCA_mpi_yield_when_idle", "value": "1"})
    return job


def stub(name: str, *options: str, file: Path = EXAMPLE, **spec: Any) -> Manifest:
    """An example job that runs tests/stub_training.py with these options in place of its program."""
    return example(name, file, **{"command": stub_training.command(), "args": list(options)} | spec)


@dataclass(frozen=True)
class Namespace:
    """A namespace with the Secret that opens the object store."""

    name: str

    def make(self) -> None:
        """Make it; its service account comes a moment later, and pods may not come before that."""
        keys = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s3-credentials"},
            "stringData": {**keys, "AWS_REGION": "us-east-1"},
        }
        api_calls.make_namespace(self.name)
        api_calls.apply(self.name, "secrets", secret)

        def has_account() -> bool:
            accounts = self.list("serviceaccounts")
            return any(account["metadata"]["name"] == "default" for account in accounts)

        until(f"the service account of {self.name}", has_account, 30)

    def delete(self, *, wait: bool = True) -> None:
        """Delete it and what is in it."""
        if wait:
            timeout = f"--timeout={150 * PATIENCE}s"
            kubectl("delete", "namespace", self.name, "--wait=true", timeout, timeout=160)
            return
        api_calls.delete_namespace(self.name)

    def kubectl(self, *words: str, stdin: str | None = None, timeout: float = 60) -> str:
        """kubectl in this namespace."""
        return kubectl("--namespace", self.name, *words, stdin=stdin, timeout=timeout)

    def list(self, kind: str, selector: str = "") -> list[Manifest]:
        """Objects of a kind."""
        if kind in api_calls.FOLDERS:
            return list(api_calls.read(self.name, kind, selector=selector)["items"])
        words = ["get", kind, "--output=json", *([f"--selector={selector}"] if selector else [])]
        return list(json.loads(self.kubectl(*words))["items"])

    def apply(self, manifest: Manifest) -> Job:
        """Apply a job as `kubectl apply --server-side` does."""
        api_calls.apply(self.name, "dtj", manifest)
        return Job(self, manifest["metadata"]["name"])


@dataclass(frozen=True)
class Job:
    """A job in the cluster."""

    namespace: Namespace
    name: str

    def get(self) -> Manifest:
        """Its manifest as stored."""
        return api_calls.read(self.namespace.name, "dtj", self.name)

    @property
    def status(self) -> Manifest:
        """Its status; empty before the operator's first pass."""
        return dict(self.get().get("status") or {})

    def condition(self, kind: str) -> Manifest:
        """A condition; empty when it has none of that type."""
        return next((c for c in self.status.get("conditions", []) if c["type"] == kind), {})

    def pods(self) -> list[Manifest]:
        """Its pods."""
        return self.namespace.list("pods", f"dtj.dev/job={self.name}")

    def uids(self) -> dict[str, str]:
        """The uids of its pods, by name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods()}

    def tell(self, replica: str, what: str) -> None:
        """Make /dtj/run/WHAT in a replica such as `worker-0`, for which the replica's program waits."""
        self.namespace.kubectl("exec", f"{self.name}-{replica}", "--", "touch", f"/dtj/run/{what}")

    def hurry_to_the_end(self, replica: str = "worker-0") -> Manifest:
        """Its status once its stub training, which takes no time for steps from now on, has succeeded."""

        def ended() -> bool:
            with suppress(KubectlError):  # The pod may be about to start, or be replaced: it is told again.
                self.tell(replica, "hurry")
            return self.status.get("phase") in ("Succeeded", "Failed")

        until(f"{self.name} to end", ended, 180, every=2)
        return self.wait()

    def events(self) -> list[Manifest]:
        """What the operator told of it, oldest first."""
        events = self.namespace.list("events")
        mine = [e for e in events if e["involvedObject"]["name"] == self.name]
        return sorted(mine, key=lambda e: e["lastTimestamp"] or "")

    def wait_for_event(self, reason: str) -> list[Manifest]:
        """The events with that reason, once there is one: the operator writes the status before the event."""
        return until(
            f"an event {reason}", lambda: [e for e in self.events() if e["reason"] == reason] or None, 30
        )

    def wait(self, seconds: float = 180, phase: str = "Succeeded") -> Manifest:
        """Its status once it is in that phase; fails at once when it has ended otherwise."""

        def there() -> Manifest | None:
            status = self.status
            if status.get("phase") == phase:
                return status
            assert status.get("phase") not in ("Succeeded", "Failed"), self.story()
            return None

        try:
            return until(f"{self.name} to be {phase}", there, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None

    def wait_for_step(self, step: int, seconds: float = 120) -> int:
        """Its step once it has come that far."""

        def there() -> int | None:
            status = self.status
            assert status.get("phase") not in ("Succeeded", "Failed"), self.story()
            now = (status.get("progress") or {}).get("step", 0)
            return int(now) if now >= step else None

        return until(f"{self.name} to reach step {step}", there, seconds)

    def story(self) -> str:
        """All that helps to see what went wrong."""
        lines = [yaml.safe_dump(self.status)]
        lines += [f"{e['type']} {e['reason']}: {e['message']}" for e in self.events()]
        for pod in self.pods():
            lines.append(
                f"--- {pod['metadata']['name']}: {json.dumps(pod['status'].get('containerStatuses'))}"
            )
            try:
                lines.append(self.namespace.kubectl("logs", pod["metadata"]["name"], "--tail=25"))
            except KubectlError as error:
                lines.append(str(error))
        return "\n".join(lines)

    def artifacts(self) -> Artifacts:
        """What it left in the bucket."""
        return Artifacts(self.status["artifacts"]["uri"])


@dataclass(frozen=True)
class Artifacts:
    """A job's prefix in the bucket."""

    uri: str

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self.uri.removeprefix("s3://").split("/", 1)[0]

    @property
    def prefix(self) -> str:
        """The prefix, with its slash."""
        return self.uri.removeprefix("s3://").split("/", 1)[1].rstrip("/") + "/"

    def sizes(self) -> dict[str, int]:
        """Sizes in bytes of all objects, by key below the prefix."""
        pages = s3_client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
        return {
            entry["Key"].removeprefix(self.prefix): entry["Size"]
            for page in pages
            for entry in page.get("Contents", [])
        }

    def read(self, key: str) -> bytes:
        """One object."""
        return bytes(s3_client().get_object(Bucket=self.bucket, Key=self.prefix + key)["Body"].read())

    def metrics(self) -> list[Manifest]:
        """The rows of metrics.jsonl."""
        return [json.loads(line) for line in self.read("metrics.jsonl").splitlines()]

    def stub_steps_are_complete(self, steps: int) -> bool:
        """Whether the model says that a stub training made each of so many steps once, and in order."""
        return self.read(f"model/{stub_training.MODEL_FILE}").decode() == stub_training.chain_of(steps)

    def download(self, folder: Path, below: str = "") -> Path:
        """Copy all objects below a key into a folder."""
        for key in self.sizes():
            if key.startswith(below):
                target = folder / key
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self.read(key))
        return folder
