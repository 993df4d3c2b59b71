"""Scripts of other people's form by `dtj submit SCRIPT` alone, and packages without a registry."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cluster.code import give_defaults, submitted
from tests.cluster.jobs import Namespace
from tests.wheels import wheel

pytestmark = [pytest.mark.cluster, pytest.mark.layouts]
SCRIPTS = Path(__file__).parent / "scripts"
LARGE_BYTES = 50 * 1000**2
OF_LARGE = """\
import subprocess
import sys
from pathlib import Path

import large

def never_called():
    import torch.distributed

size = Path(large.__file__).with_name("large.bin").stat().st_size
words = [sys.executable, "-m", "pip", "download", "tabulate", "--dest", "/tmp/asked", "--retries=0", "--no-deps"]
asked = subprocess.run(words, capture_output=True, text=True)
print(f"large has {size} bytes; pip ended with {asked.returncode}: {asked.stderr.splitlines()[-1]}", flush=True)
"""


@pytest.mark.parametrize("form", sorted(path.name for path in SCRIPTS.iterdir()))
def test_a_script_as_it_is_trains_on_two_workers(form: str, namespace: Namespace, tmp_path: Path) -> None:
    give_defaults(namespace)
    printed = submitted(namespace, form, SCRIPTS / form / "train.py", home=tmp_path).ended()
    told = re.findall(r"rank (\d) of (\d) done, loss ([\d.]+)", printed)
    assert sorted(each[:2] for each in told) == [("0", "2"), ("1", "2")], printed
    assert all(float(loss) < 0.5 for *_, loss in told), printed


def test_pods_install_50_mb_of_wheels_without_a_registry(namespace: Namespace, tmp_path: Path) -> None:
    give_defaults(namespace)
    content = {"large.py": "", "large.bin": os.urandom(LARGE_BYTES)}
    wheel(tmp_path / "registry", "large", files=content)
    folder = tmp_path / "my-training"
    folder.mkdir()
    (folder / "train.py").write_text(OF_LARGE)
    (folder / "requirements.txt").write_text("large\n")
    # Every request of a pod but those to the store would go to a proxy that does not exist.
    store = urlsplit(os.environ["DTJ_TEST_S3_ENDPOINT"]).hostname
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    variables = {**proxies, "NO_PROXY": f"{store},127.0.0.1,.svc.cluster.local"}
    words = [f"--env={name}={value}" for name, value in variables.items()]
    here = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "registry"), "PIP_CONFIG_FILE": os.devnull}
    submission = submitted(namespace, "large", folder, *words, home=tmp_path, **here)
    printed = submission.ended()
    found = re.findall(r"\[worker-(\d)\] large has (\d+) bytes; pip ended with (\d)", printed)
    assert sorted(found) == [(index, str(LARGE_BYTES), "1") for index in "01"], printed
    packages = submission.job.get()["spec"]["code"]["packages"]
    assert packages["uri"].startswith("s3://training/jobs/_code/")
