"""Pods that restore one checkpoint get its files from each other: each leaves the bucket once, whatever fails."""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from tests.trainer.conftest import BUCKET, ObjectStore, until, upload_saved
from tests.trainer.differing_store import differing_store
from tests.trainer.loopback_pods import LoopbackPods, free_port
from tests.trainer.memory_store import Bucket, Gate, MemoryStore

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints, file_fetch, peers
from dtj_trainer.artifacts.arriving_file import ArrivingFile
from dtj_trainer.artifacts.file_fetch import Near
from dtj_trainer.artifacts.manifest import Manifest
from dtj_trainer.artifacts.peers import CheckpointPeers, PeerServer
from dtj_trainer.artifacts.restore import restore
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.store import Store, open_store
from dtj_trainer.artifacts.sync import PodSync
from dtj_trainer.launch.pod import sync_settings
from dtj_trainer.launch.settings import SettingsError, read_settings

LARGE = 300_000
CONTENTS = {f"{name}.pt": random.Random(name).randbytes(LARGE) for name in "abcd"} | {"small.pt": b"small"}


def save(job: Store, root: Path, monkeypatch: pytest.MonkeyPatch, on_demand: str = "", **more: bytes) -> None:
    """Upload a checkpoint of step 5 with the CONTENTS."""
    monkeypatch.setenv("DTJ_ROOT", str(root))
    monkeypatch.setenv("DTJ_ARTIFACTS_URI", "s3://not/pruned")

    def write(folder: Path) -> None:
        for name, content in (more or CONTENTS).items():
            (folder / name).write_bytes(content)

    checkpoints.save(5, write, on_demand=on_demand)
    upload_saved(job, root)


class Pods:
    """Pods that restore from one bucket in memory. `gets`: the GETs by file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, on_demand: str = "") -> None:
        self.bucket, self.gets = Bucket(), Counter[str]()
        self.before: Callable[[int, str], None] = lambda _, __: None
        self.servers = ExitStack()
        self.running: dict[int, PeerServer] = {}
        self._port = free_port()
        self._folder, self._lock = folder, threading.Lock()
        save(self.store(-1), folder / "saved", monkeypatch, on_demand)
        self.gets.clear()

    def store(self, number: int) -> Store:
        def count(request: str) -> None:
            self.before(number, request)
            verb, _, key = request.partition(" ")
            if verb == "get":
                with self._lock:
                    self.gets[key.rpartition("/")[2]] += 1

        return MemoryStore(self.bucket, Gate(count))

    def hosts(self, number: int, count: int = 4) -> LoopbackPods:
        return LoopbackPods.of(number, count, self._port)

    def serve(self, number: int, count: int = 4) -> PeerServer:
        server = PeerServer(self.hosts(number, count))
        self.servers.callback(server.close)
        server.start()
        return server

    def serve_all(self) -> None:
        self.running = {number: self.serve(number) for number in range(4)}

    def root(self, number: int) -> Path:
        return self._folder / f"pod-{number}"

    def checkpoint(self, number: int) -> Path:
        return self.root(number) / "checkpoints/5"

    def restore(self, number: int, patience: float = 60) -> CheckpointPeers:
        """Restore in one pod, and compare what it has."""
        server = self.running.pop(number, None) or self.serve(number)
        peers = CheckpointPeers(self.hosts(number), patience)
        folder = self.root(number) / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        near = Near(peers, server.files)
        assert restore(self.store(number).below("checkpoints"), folder, "Auto", near)
        return peers

    def compare(self, number: int) -> None:
        here = {path.name: path.read_bytes() for path in self.checkpoint(number).glob("*.pt")}
        assert here == CONTENTS
        left = [path for path in self.root(number).rglob("*") if path.name.endswith((".part", ".tmp"))]
        assert left == []

    def large_gets(self) -> dict[str, int]:
        return {name: self.gets[name] for name in CONTENTS if name != "small.pt"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of LARGE bytes are large ones."""
    monkeypatch.setattr(peers, "STILL_SECONDS", 60.0)  # This machine may be very busy.
    monkeypatch.setattr(peers, "ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(peers, "LEAST_BYTES", LARGE)
    monkeypatch.setattr(peers, "LEAST_BYTES", LARGE)


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None) -> Iterator[Pods]:
    made = Pods(tmp_path, monkeypatch)
    with made.servers:
        yield made


ONCE = dict.fromkeys((name for name in CONTENTS if name != "small.pt"), 1)


def test_four_pods_read_each_large_file_once_from_the_bucket(pods: Pods) -> None:
    pods.serve_all()
    with ThreadPoolExecutor(4) as pool:
        received = sum(each.bytes_received for each in pool.map(pods.restore, range(4)))
    for number in range(4):
        pods.compare(number)
    assert pods.large_gets() == ONCE
    assert received == 3 * 4 * LARGE
    assert pods.gets["small.pt"] == 4


def test_pods_that_restore_later_take_all_from_the_others(pods: Pods) -> None:
    pods.serve_all()
    for number in range(4):
        pods.restore(number)
        pods.compare(number)
    assert pods.large_gets() == ONCE


def test_pods_that_have_not_started_hold_nobody_up_for_long(pods: Pods) -> None:
    """Of the three pods that know about a file, one may answer: then nobody waits for the others."""
    for number in range(3):
        pods.restore(number, patience=0.2)
        pods.compare(number)
    of_four = sum(pods.large_gets().values())
    assert 4 <= of_four <= 8  # The first pod asks nobody but itself about some files.
    pods.restore(3)
    assert sum(pods.large_gets().values()) == of_four


def test_without_any_other_pod_all_comes_from_the_bucket(pods: Pods) -> None:
    pods.restore(2, patience=0)
    pods.compare(2)
    assert pods.large_gets() == ONCE


def test_a_damaged_file_of_another_pod_is_fetched_again(pods: Pods, caplog: pytest.LogCaptureFixture) -> None:
    pods.serve_all()
    pods.restore(0)
    path = pods.checkpoint(0) / "a.pt"
    path.write_bytes(b"\0" * LARGE)
    pods.restore(1)
    pods.compare(1)
    assert pods.large_gets() == ONCE | {"a.pt": 2}
    said = f"5/a.pt is damaged ({LARGE} of its bytes came from other pods), and is fetched again"
    assert said in caplog.text
    pods.restore(2)  # The nearest pod has the damaged file, too.
    pods.compare(2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"short"),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    ],
    ids=["removed", "short", "folder", "link"],
)
def test_a_file_that_the_program_replaced_comes_from_elsewhere(
    pods: Pods, damage: Callable[[Path], object]
) -> None:
    pods.serve_all()
    pods.restore(0)
    damage(pods.checkpoint(0) / "a.pt")
    pods.restore(1)
    pods.compare(1)
    assert pods.large_gets() == ONCE | {"a.pt": 2}


def test_a_pod_that_hangs_is_left_after_a_while(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "STILL_SECONDS", 0.2)
    monkeypatch.setattr(peers, "STILL_SECONDS_FOR_EACH_ABOVE", 0.0)
    stuck, go = threading.Event(), threading.Event()

    def hang(number: int, request: str) -> None:
        if number == 0 and request == "get 5/a.pt":
            stuck.set()
            assert go.wait(60)

    pods.serve_all()
    pods.before = hang
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(pods.restore, 0)
        try:
            assert stuck.wait(60)
            pods.restore(1)
            pods.compare(1)
            assert not first.done()
        finally:
            go.set()
        first.result()
    pods.compare(0)
    assert pods.gets["a.pt"] == 2


def test_a_file_is_passed_on_while_it_arrives(pods: Pods, tmp_path: Path) -> None:
    pods.restore(0)
    manifest = restored_manifest(pods)
    server = pods.serve(1)
    (tmp_path / "one").mkdir()
    server.files.offer(manifest, tmp_path / "one")
    file = next(each for each in manifest.files if each.path == "5/a.pt")
    (tmp_path / "one/5").mkdir()
    (tmp_path / "two").mkdir()
    content, received = CONTENTS["a.pt"], pods.store(2).received
    peers = CheckpointPeers(pods.hosts(2))
    with (
        ArrivingFile(tmp_path / "one/5/a.pt", shared=True) as source,
        ArrivingFile(tmp_path / "two/a.pt") as target,
        ThreadPoolExecutor(1) as pool,
    ):
        source.append(content[:1000])
        got = pool.submit(peers._get, 1, file, target, received, 60.0)
        until(lambda: target.at == 1000, "the first bytes at the other pod")
        source.append(content[1000:])
        assert got.result(60) is None
        assert (target.at, target.sha256, received.total) == (LARGE, file.sha256, LARGE)
        source.put()


def test_what_has_arrived_stays_when_the_pod_that_gave_it_fails(pods: Pods, tmp_path: Path) -> None:
    pods.restore(0)
    manifest = restored_manifest(pods)
    server = pods.serve(1)
    (tmp_path / "one/5").mkdir(parents=True)
    server.files.offer(manifest, tmp_path / "one")
    file = next(each for each in manifest.files if each.path == "5/a.pt")
    received = pods.store(2).received
    peers = CheckpointPeers(pods.hosts(2))
    with ArrivingFile(tmp_path / "a.pt") as target, ThreadPoolExecutor(1) as pool:
        with ArrivingFile(tmp_path / "one/5/a.pt", shared=True) as source:
            source.append(CONTENTS["a.pt"][:1000])
            got = pool.submit(peers._get, 1, file, target, received, 60.0)
            until(lambda: target.at == 1000, "the first bytes at the other pod")
        assert got.result(60) == f"the pod stopped at 1000 of {LARGE} bytes"
        assert peers._get(0, file, target, received, 60.0) is None
        assert (target.sha256, received.total) == (file.sha256, LARGE)


def restored_manifest(pods: Pods) -> Manifest:
    return Manifest.from_json(pods.bucket.objects["job/checkpoints/5/manifest.json"], "5")


def test_ranks_get_files_on_demand_from_other_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    pods = Pods(tmp_path, monkeypatch, on_demand="[abcd].pt")
    monkeypatch.setattr(file_fetch, "open_store", lambda uri: pods.store(-1).below(uri.partition("/job/")[2]))
    with pods.servers:
        pods.serve_all()
        for number in range(4):
            pods.restore(number)
        assert sum(pods.large_gets().values()) == 0
        for number, names in ((2, "ab"), (0, "bc"), (1, "ac"), (3, "abc")):
            monkeypatch.setattr(
                file_fetch, "peers_from_environment", lambda number=number: pods.hosts(number)
            )
            file_fetch.bring(pods.checkpoint(number), [f"{name}.pt" for name in names])
            for name in names:
                assert (pods.checkpoint(number) / f"{name}.pt").read_bytes() == CONTENTS[f"{name}.pt"]
        assert pods.large_gets() == {"a.pt": 1, "b.pt": 1, "c.pt": 1, "d.pt": 0}


def test_bytes_that_four_pods_read_from_the_bucket(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = peers.LEAST_BYTES + 1000
    contents = {name: random.Random(name).randbytes(size) for name in ("a.pt", "b.pt", "c.pt", "d.pt")}
    uri, port = f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}", free_port()
    save(open_store(uri), tmp_path / "saved", monkeypatch, **contents)

    all_serve, start = threading.Barrier(4), PeerServer.start

    def start_together(server: PeerServer) -> None:
        start(server)
        all_serve.wait(60)

    monkeypatch.setattr(PeerServer, "start", start_together)
    monkeypatch.setattr(peers, "STILL_SECONDS", 60.0)
    monkeypatch.setattr(peers, "ANSWER_SECONDS", 60.0)

    def restored(number: int) -> PodSync:
        root = tmp_path / f"pod-{number}"
        variables = {
            "DTJ_ROOT": str(root),
            "DTJ_ARTIFACTS_URI": uri,
            "DTJ_POD": contract.PodInfo(role="worker", index=number, restores=True).to_json(),
        }
        settings = sync_settings(read_settings(variables), log_names=None)
        sync = PodSync(replace(settings, peers=LoopbackPods.of(number, 4, port)), lambda _: None)
        sync.make_folders()
        assert sync.restore(timeout=60)
        return sync

    with differing_store(object_store.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
        with ThreadPoolExecutor(4) as pool:
            syncs = list(pool.map(restored, range(4)))
        for sync in syncs:
            sync.close()
        ranges = [
            asked.headers["Range"].removeprefix("bytes=").split("-")
            for asked in proxy.asked
            if asked.method == "GET" and asked.path.partition("?")[0].endswith(".pt")
        ]
    for number in range(4):
        folder = tmp_path / f"pod-{number}/checkpoints/5"
        assert {path.name: path.read_bytes() for path in folder.glob("*.pt")} == contents
    read = sum(int(last) + 1 - int(first) for first, last in ranges)
    print(f"4 pods read {read} bytes of a checkpoint of {4 * size} bytes from the bucket")
    assert read == 4 * size


def test_a_port_that_is_taken_costs_a_warning(
    object_store: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    uri, hosts = f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}", LoopbackPods.of(0, 2, free_port())
    save(open_store(uri), tmp_path / "saved", monkeypatch)
    taken = PeerServer(hosts)
    try:
        variables = {
            "DTJ_ROOT": str(tmp_path / "pod"),
            "DTJ_ARTIFACTS_URI": uri,
            "DTJ_POD": contract.PodInfo(role="worker", index=0, restores=True).to_json(),
        }
        settings = replace(sync_settings(read_settings(variables), log_names=None), peers=hosts)
        sync = PodSync(settings, lambda _: None)
        sync.make_folders()
        assert sync.restore(timeout=60)
    finally:
        taken.close()
    assert f"can't exchange checkpoints with other pods on port {hosts.port}: " in caplog.text


def test_a_damaged_file_in_the_bucket_is_no_checkpoint_with_peers_either(pods: Pods) -> None:
    pods.bucket.objects["job/checkpoints/5/a.pt"] = CONTENTS["a.pt"][::-1]
    pods.serve_all()
    for number in (0, 1):
        with pytest.raises(S3Error, match=r"a\.pt is damaged"):
            pods.restore(number)


def test_the_variables_of_the_pod() -> None:
    pod = contract.PodInfo(
        role="worker", index=1, restores=True, peers=contract.Peers("j-{}.j.ml.svc", {"ps": 2, "worker": 3})
    )
    hosts = sync_settings(read_settings({"DTJ_POD": pod.to_json()}), log_names=None).peers
    assert hosts is not None
    assert (hosts.own, hosts.port) == (3, 8476)
    names = ["j-ps-0.j.ml.svc", "j-ps-1.j.ml.svc", "j-worker-0.j.ml.svc", "localhost", "j-worker-2.j.ml.svc"]
    assert [hosts.host_of(number) for number in range(5)] == names
    assert read_settings({"DTJ_POD": pod.to_json(), "DTJ_RESTORE_PEERS": "false"}).peers is None
    with pytest.raises(SettingsError, match="DTJ_RESTORE_PEERS must be true or false, not 'no'"):
        read_settings({"DTJ_POD": pod.to_json(), "DTJ_RESTORE_PEERS": "no"})
