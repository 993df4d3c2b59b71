"""The parts of the parameter server program that need no second process.

* the division of examples and of parameters
* update rules
* checkpoints
* the cluster of TF_CONFIG, and connections
* stalls
* bottlenecks
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE
from tests.trainer.conftest import until

from dtj_trainer import contract, progress
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.contract import Bottleneck
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.data.stored_examples import BlocksAhead
from dtj_trainer.train import staged_arrays
from dtj_trainer.train.protocols import Position
from dtj_trainer.train.schedule import Ramp

tf = pytest.importorskip("tensorflow", reason="needs the tensorflow extra")
keras = pytest.importorskip("keras")

from dtj_trainer.keras import models  # noqa: E402
from dtj_trainer.keras.seeds import draw_anew  # noqa: E402
from dtj_trainer.ps import (  # noqa: E402
    chief,
    cluster,
    connections,
    evaluator,
    parameters,
    report,
    server,
    state,
    updates,
    worker_pictures,
)
from dtj_trainer.ps.options import parse  # noqa: E402

StepTimes = report.BatchTimes


# --- who computes what --------------------------------------------------------------------------


@given(
    examples=st.integers(1, 500),
    batch=st.integers(1, 40),
    workers=st.integers(1, 6),
    begun=st.integers(0, 5),
    epoch=st.integers(0, 3),
)
def test_each_example_once_an_epoch_also_after_a_resume(
    examples: int, batch: int, workers: int, begun: int, epoch: int
) -> None:
    def parts(position: int) -> list[list[np.ndarray]]:
        sharding = Sharding(examples, batch * workers, rank=0, ranks=1, seed=7)
        return [updates.shares(share.indices, workers) for share in sharding.epoch(epoch, position)]

    whole = parts(0)
    assert sorted(np.concatenate([part for step in whole for part in step])) == list(range(examples))
    assert all(len(part) <= batch for step in whole for part in step)
    position = min(begun * batch * workers, examples)
    again = parts(position)
    assert len(again) == max(len(whole) - begun, 0)
    for before, after in zip(whole[begun:], again, strict=True):
        assert [part.tolist() for part in before] == [part.tolist() for part in after]


@given(st.lists(st.integers(0, 2**40)), st.lists(st.integers(0, 2**40), min_size=1))
def test_what_is_dealt_comes_back_from_its_bytes(blocks: list[int], ids: list[int]) -> None:
    given = worker_pictures.Dealt(np.array(ids), np.array(blocks, np.int64), 7, 0.1, 2**64 - 2)
    packed = given.packed()
    dealt = worker_pictures.Dealt.unpacked(np.frombuffer(packed, "<i8"))
    assert (dealt.ids.tolist(), dealt.blocks.tolist(), *dealt[2:]) == (ids, blocks, *given[2:])
    assert float(worker_pictures.rate_of(packed)) == np.float32(0.1)
    assert int(worker_pictures.chance_of(packed)) == -2


class Loads:
    """Examples whose blocks are loaded ahead; the memory has room for two windows of two blocks."""

    def __init__(self, blocks: np.ndarray) -> None:
        self.blocks, self.loaded = blocks, list[int]()
        self._ends = np.cumsum(blocks)
        self.ahead = BlocksAhead(self.loaded.append, [1] * len(blocks), memory=4, threads=2)

    def expect(self, ids: Iterator[np.ndarray]) -> None:
        self.ahead.expect(self.blocks_of(batch) for batch in ids)

    def blocks_of(self, ids: np.ndarray) -> list[int]:
        return np.unique(np.searchsorted(self._ends, ids, side="right")).tolist()


def test_a_worker_loads_the_blocks_of_coming_steps_once() -> None:
    examples = Loads(np.array([7, 6, 8, 0, 5, 9, 7, 0]))
    deal = chief._dealer(Sharding(examples.blocks, 3, rank=0, ranks=1, seed=1, window=2))
    ahead = worker_pictures._Ahead(examples)  # type: ignore[arg-type]
    for share in Sharding(examples.blocks, 3, rank=0, ranks=1, seed=1, window=2).epoch(0):
        dealt = deal(0, share).data
        ahead.expect(dealt.blocks)
        coming = {block for block in dealt.blocks.tolist() if examples.blocks[block]}
        until(lambda wanted=coming: wanted <= set(examples.loaded), "the blocks of coming steps")
        examples.ahead.take(examples.blocks_of(dealt.ids))
    examples.ahead.close()
    assert sorted(examples.loaded) == [0, 1, 2, 4, 5, 6], "each once, but for the empty ones"


@given(total=st.integers(0, 1000), pieces=st.integers(1, 7))
def test_servers_have_equally_much(total: int, pieces: int) -> None:
    sizes = parameters.cuts(total, pieces)
    assert sum(sizes) == total
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), max_size=4))
def test_a_layout_splits_what_it_joined(shapes: list[tuple[int, ...]]) -> None:
    layout = parameters.VectorLayout(shapes)
    tensors = [np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in shapes]
    vector = layout.join(tensors)
    for split in (layout.split(vector), layout.split_array(vector.numpy())):
        assert len(split) == len(tensors)
        for left, right in zip(split, tensors, strict=True):
            np.testing.assert_array_equal(np.asarray(left), right)


def test_dropout_of_keras_follows_from_step_and_rank() -> None:
    layers = [keras.layers.Dropout(0.5), keras.layers.Dense(50), keras.layers.Dropout(0.5)]
    network = keras.Sequential([keras.layers.Input((50,)), *layers])
    answer = tf.function(lambda pixels: network(pixels, training=True), autograph=False)

    def drawn(step: int, rank: int) -> bytes:
        draw_anew(network, 1, step, rank)
        return bytes(answer(tf.ones((2, 50))).numpy().tobytes())

    first = drawn(3, 0)
    assert len({first, drawn(4, 0), drawn(3, 1), drawn(4, 1)}) == 4
    assert drawn(3, 0) == first
    assert len({tuple(each.seed_generator.state.numpy()) for each in (layers[0], layers[2])}) == 2


def test_dropout_on_servers_follows_from_the_chance_and_whole_numbers_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parameters, "ps_device", lambda _: "/device:CPU:0")
    monkeypatch.setattr(parameters, "ps_device", lambda _: "/device:CPU:0")
    first, second = keras.layers.Normalization(), keras.layers.Dropout(0.5)
    network = keras.Sequential([keras.Input((8,)), first, second, keras.layers.Dense(4)])
    first.count.assign(60_001)
    held = parameters.Parameters(network, parse([], "program", "what it is"), 2)
    step = updates.WorkerStep(network, held, (8, 1, 1))
    pixels = tf.constant(np.random.default_rng(1).normal(size=(3, 8)), tf.float32)

    @tf.function(autograph=False)
    def passed(chance: Any) -> Any:
        return step.forward(held.trainable.read(), held.read_other(), pixels, tf.constant([0, 1, 2]), chance)

    losses = [float(passed(tf.constant(each, tf.int64)).counts[0]) for each in (1, 1, 2, 2**32 + 1, -1)]
    assert losses[0] == losses[1]
    assert len(set(losses)) == 4
    held.assign_other(passed(tf.constant(1, tf.int64)).other - 0.004)
    parameters.set_weights(network, held.vectors())
    assert int(first.count) == 60_001


# --- update rules -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("ps", [1, 3])
def test_update_rules_are_those_of_keras(monkeypatch: pytest.MonkeyPatch, name: str, ps: int) -> None:
    monkeypatch.setattr(parameters, "ps_device", lambda _: "/device:CPU:0")
    options = parse([f"--optimizer={name}", "--lr=0.01"], "program", "what it is")
    chance = np.random.default_rng(1)
    initial = chance.normal(size=10).astype(np.float32)
    mine = parameters.ShardedVector(initial, ps, "mine")
    optimizer = parameters.make_optimizer(options, mine)
    theirs = keras.Variable(initial)
    rule = keras.optimizers.SGD(0.01, momentum=0.9) if name == "sgd" else keras.optimizers.Adam(0.01)
    rule.build([theirs])
    for step in range(5):
        gradient = chance.normal(size=10).astype(np.float32)
        optimizer.apply(tf.constant(gradient), tf.constant(step, tf.int64), tf.constant(0.01))
        rule.apply([tf.constant(gradient)], [theirs])
    np.testing.assert_allclose(mine.value(), np.asarray(theirs), rtol=0, atol=1e-6)


def test_what_servers_hold_moves_to_another_number_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "ps_device", lambda _: "/device:CPU:0")
    monkeypatch.setattr(parameters, "ps_device", lambda _: "/device:CPU:0")
    options = parse(["--model=resnet20"], "program", "what it is")
    first, second, third = (models.build("resnet20", (8, 8, 1), 3, seed) for seed in (1, 2, 3))
    held = parameters.Parameters(first, options, 2).vectors() | {"step": np.array(7)}
    other = parameters.Parameters(second, options, 3)
    other.restore(held)
    assert int(other.step.numpy()) == 7
    parameters.set_weights(third, other.vectors())
    for left, right in zip(first.variables, third.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))
    with pytest.raises(ValueError, match="trainable has 3 values instead of"):
        other.restore(held | {"trainable": np.zeros(3)})


@pytest.mark.parametrize("name", ["cnn", "resnet20", "mobilenet_v2"])
def test_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = models.build(name, (9, 11, 3), 5, 4)
    # As if another thread drew numbers in the midst of it.
    monkeypatch.setattr(keras.utils, "set_random_seed", lambda _: None)
    second = models.build(name, (9, 11, 3), 5, 4)
    for left, right in zip(first.variables, second.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))
    assert first(np.zeros((2, 9, 11, 3), np.float32)).shape == (2, 5)
    with pytest.raises(ValueError, match="at least 8x8, these are 4x28"):
        models.build(name, (4, 28, 1), 10, 0)
    with pytest.raises(ValueError, match="no model 'vgg': there are cnn, resnet20"):
        models.build("vgg", (28, 28, 1), 10, 0)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet20", 269_722),  # He et al. (2015), table 6: 0.27 million.
        ("resnet44", 658_586),  # The same: 0.66 million.
        ("mobilenet_v2", 3_504_872),  # As in torchvision.
        ("densenet121", 7_978_856),  # The same.
        ("vgg16", 138_357_544 - 4096 * 512 * (7 * 7 - 1)),  # 32x32 pictures leave 1x1, not 7x7.
    ],
)
def test_parameters_of_models(name: str, parameters: int) -> None:
    of_cifar = name.startswith("resnet")
    model = models.build(name, (28 if of_cifar else 32, 32, 3), 10 if of_cifar else 1000, 1)
    assert sum(int(np.prod(each.shape)) for each in model.trainable_variables) == parameters


# --- checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [0, 2**40], ids=["process", "thread"])
def test_the_chief_saves_the_state_of_a_step_beside_the_training(
    large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    monkeypatch.setattr(parameters, "ps_device", lambda _: "/device:CPU:0")
    monkeypatch.setattr(parameters, "ps_device", lambda _: "/device:CPU:0")
    monkeypatch.setattr(staged_arrays, "LARGE_BYTES", large)
    options = parse(["--model=resnet20"], "program", "what it is")
    network = models.build("resnet20", (8, 8, 1), 3, 1)
    held = parameters.Parameters(network, options, 2)
    here = state.TrainingState("resnet20", (8, 8, 1), 3, "sgd", 100)
    saver = chief.ChiefSaver(options, here, network, held, chief.Pulse())
    saver.prepare_saves()
    expected = {}
    for step in (1, 2):
        here.step = step
        held.step.assign(step)
        expected[step] = held.vectors()
        saver.save(Position(step, 0, step), Ramp(0.0, 1.0, 1.0), None, final=False, wait=False)
        held.restore({name: values + 1 for name, values in expected[step].items()})
    saver.close()
    for saved in checkpoints.saved():
        found, vectors = state.load(saved.path)
        assert (found.step, vectors.keys()) == (saved.step, expected[saved.step].keys())
        for name, values in vectors.items():
            assert values.dtype == expected[saved.step][name].dtype
            np.testing.assert_array_equal(values, expected[saved.step][name])
    assert len(checkpoints.saved()) == 2


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    mine = state.TrainingState("cnn", (28, 28, 1), 10, "sgd", 1004, step=5, epoch=1, examples=320)
    folder = state.save(mine, lambda path: np.savez(path, trainable=np.arange(3.0)))
    found, vectors = state.load(folder)
    assert found == mine
    np.testing.assert_array_equal(vectors["trainable"], np.arange(3.0))

    def refused(changed: state.TrainingState, message: str) -> None:
        with pytest.raises(state.NotOurCheckpoint, match=message):
            state.check(found, changed, folder)

    refused(state.TrainingState("resnet20", (28, 28, 1), 10, "sgd", 1004), "is of a cnn, not of a resnet20")
    refused(state.TrainingState("cnn", (28, 28, 1), 10, "adam", 1004), "trained by sgd, not by adam")
    refused(state.TrainingState("cnn", (32, 32, 1), 10, "sgd", 1004), "give the same data")
    refused(state.TrainingState("cnn", (28, 28, 1), 10, "sgd", 40), "from the middle of an epoch of 1004")
    (folder / "training.json").unlink()
    with pytest.raises(state.NotOurCheckpoint, match="was not written by this program"):
        state.load(folder)


# --- who takes part -----------------------------------------------------------------------------


def test_cluster_from_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    def given_config(addresses: dict[str, list[str]], kind: str, index: int = 0) -> cluster.Cluster:
        content = {"cluster": addresses, "task": {"type": kind, "index": index}, "environment": "cloud"}
        monkeypatch.setenv("TF_CONFIG", json.dumps(content))
        return cluster.from_environment()

    whole = {"chief": ["c:2222"], "worker": ["w0:2222", "w1:2222"], "ps": ["p:2222"]}
    found = given_config(whole, "evaluator")
    assert (found.workers, found.ps, str(found.task)) == (2, 1, "evaluator 0")
    assert given_config(whole, "worker", 1).address(cluster.Task("worker", 1)) == "w1:2222"
    for addresses, task in ((whole, ("worker", 2)), ({"worker": ["w:1"]}, ("worker", 0)), ({}, ("chief", 0))):
        with pytest.raises(cluster.BadCluster):
            given_config(addresses, *task)
    for address in ("w0", "w0:", ":2222", "w0:http", "w0:70000"):
        with pytest.raises(cluster.BadCluster, match="not host:port"):
            given_config(whole | {"worker": [address, "w1:2222"]}, "worker")
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(cluster.BadCluster, match="can't be read"):
        cluster.from_environment()


def test_who_does_not_answer_is_named() -> None:
    nobody = cluster.Cluster(
        {"chief": ("127.0.0.1:1",), "worker": ("127.0.0.1:1",), "ps": ("nobody.invalid:1",)},
        cluster.Task("chief", 0),
    )
    everybody = nobody.tasks("ps", "worker")
    with pytest.raises(
        cluster.TasksUnreachable,
        match=r"no answer from parameter server 0 at nobody.invalid:1, worker 0 at 127.0.0.1:1",
    ):
        cluster.wait_for(nobody, everybody, 0, lambda: False)
    assert not cluster.wait_for(nobody, everybody, 10, lambda: True)
    message = "from remote target /job:worker/replica:0/task:1 … remote target /job:ps/replica:0/task:2/device:CPU:0"
    assert cluster.blamed(message) == [cluster.Task("ps", 2)]


def test_connections_to_servers_break_when_nothing_comes_from_there_any_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port = server.getsockname()[1]
        with (
            socket.create_connection(("127.0.0.1", port)) as connection,
            socket.create_connection(other.getsockname()) as of_others,
        ):
            here = cluster.Cluster({"ps": (f"ps-0.ml.svc:{port}",)}, cluster.Task("chief", 0))
            connections.give_up_when_silent(here)

            def silence(of: socket.socket) -> tuple[int, int]:
                """Whether it is probed, and milliseconds until it breaks."""
                probed = of.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                return probed, of.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

            deadline = time.monotonic() + 30 * PATIENCE
            kept = (1, contract.TENSORFLOW_SILENCE_SECONDS * 1000)
            while silence(connection) != kept and time.monotonic() < deadline:
                time.sleep(0.05)
            assert silence(connection) == kept
            assert silence(of_others) == (0, 0)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_descriptor_that_is_closed_and_opened_anew_meanwhile_leaks_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        over = threading.Event()

        def churn() -> None:
            """As TensorFlow's threads do: the same number is a connection, a file, nothing, a pipe in turn."""
            while not over.is_set():
                socket.create_connection(("127.0.0.1", port)).close()
                server.accept()[0].close()
                (tmp_path / "file").open("w").close()
                for end in os.pipe():
                    os.close(end)

        before = open_files()
        thread = threading.Thread(target=churn)
        thread.start()
        try:
            for _ in range(2000):
                for found in connections.connections({port}):
                    with found, contextlib.suppress(OSError):
                        connections.probe(found)
        finally:
            over.set()
            thread.join()
        # The watches of other tests hold one for a moment.
        until(lambda: open_files() <= before, "no descriptor more than before")


class Coordinator:
    """A coordinator that has a result after it was asked a few times."""

    def __init__(self, scheduled: object) -> None:
        self.asked: list[str] = []
        self._scheduled = scheduled

    def done(self) -> None:
        self.asked.append("done")
        if len(self.asked) == 3:
            self._scheduled._has_fetched_to_local = True  # type: ignore[attr-defined]

    def join(self) -> None:
        self.asked.append("join")


def test_what_tensorflow_tells_of_a_result_and_what_is_done_without() -> None:
    from tensorflow.python.distribute.coordinator import values

    scheduled = values.RemoteValueImpl(None, None)
    assert updates.reports_arrival(scheduled), (
        "workers would be idle at times with this release of TensorFlow"
    )
    coordinator = Coordinator(scheduled)
    updates.wait_until_arrived(coordinator, scheduled)
    assert coordinator.asked == ["done"] * 3

    silent = Coordinator(object())
    updates.wait_until_arrived(silent, object())
    assert silent.asked == ["join"]


def test_gpus_that_stay_idle_are_told(caplog: pytest.LogCaptureFixture) -> None:
    for gpus in (0, 1):
        server.warn_of_idle_gpus(gpus)
    assert not caplog.records
    server.warn_of_idle_gpus(4)
    assert "has 4 GPUs and computes on the first one alone" in caplog.text


# --- when it stands still -----------------------------------------------------------------------


def test_slow_steps_are_no_stall() -> None:
    pulse = chief.Pulse()
    assert pulse.limit == chief.FIRST_STALL_SECONDS
    pulse.step_ended(2)
    assert pulse.limit == chief.STALL_SECONDS
    pulse.step_ended(100)
    pulse.step_ended(2)
    assert pulse.limit == 1000
    pulse.stop()
    assert pulse.at is None


@pytest.mark.parametrize("answer", [True, False])
def test_a_stall_ends_the_chief_when_all_answer(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    monkeypatch.setattr(chief, "STALL_SECONDS", 0.1)
    monkeypatch.setattr(chief, "silent", lambda c, kind: [] if answer else c.tasks(kind))
    here = cluster.Cluster({"worker": ("w:1",), "ps": ("p:1",)}, cluster.Task("chief", 0))
    ended: queue.Queue[str] = queue.Queue()

    def end(what: str) -> NoReturn:
        ended.put(what)
        while True:  # the watch's thread ends with the process
            time.sleep(60)

    pulse = chief.Pulse()
    pulse.limit = 0.2  # as before the first step
    chief.end_when_stalled(pulse, here, end)
    if answer:
        assert "though parameter servers and workers answer" in ended.get(timeout=10 * PATIENCE)
    else:
        with pytest.raises(queue.Empty):
            ended.get(timeout=1)
        pulse.stop()


def test_the_evaluator_reads_each_checkpoint_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    loads: list[Path] = []
    load = state.load
    monkeypatch.setattr(state, "load", lambda folder: loads.append(folder) or load(folder))
    newest = evaluator._Newest()
    assert newest.another() is None
    now = state.TrainingState("cnn", (28, 28, 1), 10, "sgd", 1004, step=5)
    for final in (False, True):  # the last one replaces that of the same step
        now.final = final
        state.save(now, lambda path: np.savez(path, trainable=np.arange(3.0)))
        found = newest.another()
        assert found is not None
        assert found[0] == now
        assert newest.another() is None
    assert len(loads) == 2


# --- what holds the training up -----------------------------------------------------------------


def watched(
    watch: report.BottleneckWatch, seconds: float, batches: Iterable[StepTimes], start: float = 0
) -> Bottleneck | None:
    """A batch of each of `batches` every tenth of a second, asked once a second; what it says in the end."""
    found = None
    for tick in range(round(seconds * 10)):
        now = start + tick / 10
        for batch in batches:
            watch.add(batch, now)
        if tick % 10 == 0:
            found = watch.find(now)
    return found


EVEN = [StepTimes(worker, 0.003, 0.02, 0.004) for worker in range(2)]
STARVED = [StepTimes(worker, 0.021, 0.008, 0.020) for worker in range(2)]


def test_starved_servers_are_told_with_figures_and_only_when_it_lasts() -> None:
    watch = report.BottleneckWatch(1)
    assert watched(watch, 30, EVEN) is None
    assert watched(watch, 8, STARVED, 30) is None
    found = watched(watch, 40, STARVED, 38)
    assert found is not None
    assert found["kind"] == "ParameterServers"
    assert found["message"].endswith(": give ps more CPU or more replicas (replicaSpecs.ps)")
    assert "of each step for 1 parameter server (" in found["message"]
    assert watched(watch, 60, EVEN, 78) is None


def test_the_message_of_steady_starvation() -> None:
    found = watched(report.BottleneckWatch(1), 20, STARVED)
    assert found == {
        "kind": "ParameterServers",
        "message": "workers wait 84 % of each step for 1 parameter server (41 ms of 49 ms): "
        "give ps more CPU or more replicas (replicaSpecs.ps)",
    }


def test_a_little_better_is_not_over() -> None:
    watch = report.BottleneckWatch(2)
    assert watched(watch, 20, STARVED) is not None
    between = [StepTimes(worker, 0.005, 0.011, 0.004) for worker in range(2)]  # 45 %
    found = watched(watch, 60, between, 20)
    assert found is not None
    assert found["message"].startswith(
        "workers wait 45 % of each step for 2 parameter servers (9.0 ms of 20 ms)"
    )
    assert watched(report.BottleneckWatch(2), 60, between) is None


def test_a_straggler_is_named() -> None:
    slow = [StepTimes(0, 0.003, 0.02, 0.004), StepTimes(1, 0.003, 0.05, 0.004)]
    found = watched(report.BottleneckWatch(1), 20, slow)
    assert found is not None
    assert found["kind"] == "Worker"
    assert found["message"].startswith("worker 1 computes 50 ms on each batch, the others 20 ms")
    assert watched(report.BottleneckWatch(1), 20, slow[1:]) is None, "one worker has nobody to compare with"


def test_another_straggler_is_named_once_it_lasts() -> None:
    def slow(which: int) -> list[StepTimes]:
        return [StepTimes(worker, 0.003, 0.05 if worker == which else 0.02, 0.004) for worker in range(3)]

    watch = report.BottleneckWatch(1)
    named = [
        found["message"][:8]
        for start, which, seconds in ((0, 1, 20), (20, 0, 15), (35, 0, 20), (55, 2, 40))
        if (found := watched(watch, seconds, slow(which), start))
    ]
    assert named == ["worker 1", "worker 1", "worker 0", "worker 2"]


def test_a_lost_worker_is_no_straggler() -> None:
    watch = report.BottleneckWatch(1)
    slow = [StepTimes(0, 0.003, 0.02, 0.004), StepTimes(1, 0.003, 0.05, 0.004)]
    assert watched(watch, 20, slow) is not None
    assert watched(watch, 60, slow[:1], 20) is None


times = st.floats(0, 10, allow_nan=False)
batch = st.builds(StepTimes, st.integers(0, 3), times, times, times)


@given(st.lists(st.tuples(st.floats(0, 5), batch), max_size=60))
def test_any_times_give_a_finding_or_none(arrivals: list[tuple[float, StepTimes]]) -> None:
    watch, now = report.BottleneckWatch(1), 0.0
    for later, one in arrivals:
        now += later
        watch.add(one, now)
        found = watch.find(now)
        assert found is None or (found["kind"] in ("ParameterServers", "Worker") and found["message"])


@given(
    st.lists(
        st.builds(StepTimes, st.integers(0, 3), st.just(0.001), st.just(0.01), st.just(0.001)), max_size=80
    )
)
def test_even_workers_and_quick_servers_are_never_blamed(batches: list[StepTimes]) -> None:
    watch = report.BottleneckWatch(3)
    for second, one in enumerate(batches):
        watch.add(one, float(second))
        assert watch.find(float(second)) is None


def test_progress_carries_the_bottleneck(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    reporter = progress.Reporter(path)
    found: Bottleneck = {"kind": "Worker", "message": "worker 1 is slow"}
    reporter.report(step=1)
    reporter.bottleneck(found)
    assert progress.read(path)["bottleneck"] == found
    reporter.bottleneck(None)
    reporter.bottleneck(None)
    assert "bottleneck" not in progress.read(path)
    for wrong in ({"kind": "Moon", "message": "x"}, {"kind": "Worker", "message": 3}, "Worker", None):
        path.write_text(json.dumps({"step": 1, "bottleneck": wrong}))
        assert progress.read(path) == {"step": 1}
