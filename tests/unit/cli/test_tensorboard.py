"""`dtj tensorboard`: the event files of the bucket, and the program that serves the files."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboardX import SummaryWriter

from dtj.api.errors import DtjError, Unusable
from dtj.cli import tensorboard
from dtj.local.processes import is_alive
from dtj_trainer.contract.distribution import install_line
from dtj_trainer.tensorboard_pod import EventFiles
from tests.patience import PATIENCE
from tests.unit.support.fake_client import call

pytestmark = pytest.mark.usefixtures("client")


class Bucket:
    """Objects in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def ls(self, prefix: str) -> list[Any]:
        return [
            SimpleNamespace(key=key, etag=str(hash(content)))
            for key, content in self.objects.items()
            if key.startswith(f"{prefix}/")
        ]

    def get_growth(self, key: str, file: Path) -> None:
        file.write_bytes(self.objects[key])


def test_new_events_are_served_while_it_runs(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    written = tmp_path / "written"
    bucket = Bucket()

    def write(step: int) -> None:
        """One part, as the training programs write them."""
        with SummaryWriter(str(written), filename_suffix=f".{step}") as writer:
            writer.add_scalar("loss", 1 / step, step)
        for file in written.iterdir():
            bucket.objects[f"tensorboard/{file.name}"] = file.read_bytes()

    def steps(url: str) -> list[int]:
        query = f"{url}data/plugin/scalars/scalars?tag=loss&run=."
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(query, timeout=10) as answer:
                return [point[1] for point in json.load(answer)]
        except OSError:
            return []  # It has not read the files yet, or is late.

    events = EventFiles(tmp_path / "served", bucket.ls, bucket.get_growth)
    write(1)
    events.fetch()
    with tensorboard._served(tmp_path / "served", port) as url:
        wait_until(lambda: steps(url) == [1])
        write(2)
        events.fetch()
        wait_until(lambda: steps(url) == [1, 2])
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_an_end_of_tensorboard_is_told_with_its_last_word(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        port = taken.getsockname()[1]
        with (
            pytest.raises(DtjError, match="TensorBoard ended with exit code"),
            tensorboard._served(tmp_path, port),
        ):
            pass


def test_without_tensorboard_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard.importlib.util, "find_spec", lambda _: None)
    error = call("tensorboard", "mnist").exception
    assert isinstance(error, DtjError)
    assert error.remedy == install_line("tensorboard")


def test_once_needs_a_folder() -> None:
    assert isinstance(call("tensorboard", "mnist", "--once").exception, Unusable)


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + 40 * PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_tensorboard_ends_when_dtj_is_killed(tmp_path: Path) -> None:
    starter = (
        "import os, subprocess, sys; process = subprocess.Popen([sys.executable, '-m', "
        "'dtj_trainer.tensorboard_program', str(os.getpid()), '--logdir', sys.argv[1], '--port', '0'], "
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); print(process.pid, flush=True); process.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", starter, str(tmp_path)], stdout=subprocess.PIPE) as dtj:
        assert dtj.stdout
        child = int(dtj.stdout.readline())
        assert is_alive(child)
        dtj.kill()
    deadline = time.monotonic() + 20 * PATIENCE
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(child)
