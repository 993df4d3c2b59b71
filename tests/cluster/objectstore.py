"""The S3 store of the cluster: SeaweedFS at an address that pods reach, buckets, and Fashion-MNIST in one bucket."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests import fashion_mnist
from tests.cluster.local.processes import Component
from tests.cluster.progress import ClusterError, step

PORT = 8333
BUCKETS = ("datasets", "training")


@dataclass(frozen=True)
class ObjectStore:
    """A SeaweedFS with its data and credentials in `directory`, listening at `address` alone."""

    directory: Path
    address: str

    @property
    def endpoint(self) -> str:
        """What an S3 client calls."""
        return f"http://{self.address}:{PORT}"

    def credentials(self) -> dict[str, str]:
        """The only pair the server knows; made on the first call."""
        path = self.directory / "credentials.json"
        if not path.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            pair = {
                "AWS_ACCESS_KEY_ID": "DTJ" + secrets.token_hex(8).upper(),
                "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
            }
            temporary = path.with_suffix(".new")
            temporary.touch(mode=0o600)
            temporary.write_text(json.dumps(pair))
            temporary.rename(path)
        return dict(json.loads(path.read_text()))

    def component(self) -> Component:
        """The server."""
        (self.directory / "data").mkdir(parents=True, exist_ok=True)
        return Component(
            "seaweedfs",
            (
                _weed(),
                "mini",
                f"-dir={self.directory / 'data'}",
                f"-ip={self.address}",
                f"-ip.bind={self.address}",  # the default is every address of the machine
                "-admin.ui=false",
                "-master.telemetry=false",
                "-webdav=false",
                f"-s3.port={PORT}",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-s3.autoCreateBucket=false",
                "-s3.allowDeleteBucketNotEmpty=false",
                f"-bucket={','.join(BUCKETS)}",
            ),
            ready=self.ready,
            env=tuple(self.credentials().items()),
        )

    def ready(self) -> bool:
        """Whether all buckets are there."""
        try:
            for bucket in BUCKETS:
                self.client().head_bucket(Bucket=bucket)
        except (BotoCoreError, ClientError):
            return False
        return True

    def client(self) -> Any:
        """A boto3 client of this server."""
        pair = self.credentials()
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=pair["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=pair["AWS_SECRET_ACCESS_KEY"],
            config=Config(proxies={}, connect_timeout=2, retries={"total_max_attempts": 1}),
        )

    def fill(self) -> None:
        """Put Fashion-MNIST where the examples look for it, in its published form."""
        client = self.client()
        listed = client.list_objects_v2(Bucket="datasets", Prefix=f"{fashion_mnist.NAME}/").get(
            "Contents", []
        )
        there = {entry["Key"]: entry["Size"] for entry in listed}
        folder = fashion_mnist.folder()
        missing = [
            folder / name
            for name in fashion_mnist.FILES
            if there.get(f"{fashion_mnist.NAME}/{name}") != (folder / name).stat().st_size
        ]
        if missing:
            with step(f"putting Fashion-MNIST into s3://datasets/{fashion_mnist.NAME}/"):
                for file in missing:
                    client.put_object(
                        Bucket="datasets", Key=f"{fashion_mnist.NAME}/{file.name}", Body=file.read_bytes()
                    )


def _weed() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ClusterError("weed is missing: it comes with the `dev` extra (`make cluster` installs it)")
    return found
