"""A training without mathematics, for tests of everything around a training.

`python -c TEXT stub-training [OPTION…]`, as `command` makes it, runs in every image that has `dtj_trainer`. The
program imports the standard library and `dtj_trainer` alone, so that a replica starts in a tenth of a second.

What dtj sees of the program is real: progress, metrics.jsonl, checkpoints by `checkpoints.save`, the model, a
checkpoint at SIGTERM, the resume from the newest checkpoint. The processes need each other as those of the frameworks
do: the ranks of Horovod and of PyTorch meet in each step; the chief asks each ps in each step, and those workers
that answer.

A rank of PyTorch other than rank 0 exits with 0 once /dtj/run/leave is there. In the attempt that STUB_TAKES_PORT
names, rank 0 finds its port taken.

Once /dtj/run/hang is there, a rank other than rank 0 hangs until SIGTERM: it answers no more.

Once /dtj/run/hurry is there, steps take no time, and checkpoints are made at the end and at SIGTERM alone: a training
with many steps lasts until a test lets it end.

The state is a chain of hashes, one link a step: a step that is left out or counted twice shows in the chain, which
the model holds at the end. Compare the model with `chain_of(steps)`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from dtj_trainer import contract, progress
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.tensorboard import ScalarWriter
from dtj_trainer.train.report import MetricsFile

NAME = "stub-training"
RANK_PORT = 29900
"""Where rank n waits for rank 0, plus n."""
STATE_FILE, MODEL_FILE = "state.json", "chain"
STEP, SAVE_AND_END, END = b"s", b"t", b"e"
"""What the primary asks and is answered: a step, whoever answers is told to end, the training is over."""
LOG_SECONDS = 0.5
"""Between two rows of metrics.jsonl."""
ENV_TAKES_PORT = "STUB_TAKES_PORT"
PEER_SECONDS = 2.0
"""A worker that is silent for so long is left out; a silent ps or rank is waited for."""
CONNECT_SECONDS = 60.0
"""A rank of PyTorch waits for rank 0 so long."""


def command() -> list[str]:
    """The command of a container that runs this program."""
    return ["python", "-c", Path(__file__).read_text(), NAME]


def link(chain: str, step: int) -> str:
    """The state after one more step."""
    return hashlib.sha256(f"{chain} {step}".encode()).hexdigest()


def chain_of(steps: int) -> str:
    """The state after `steps` steps, each done once and in order."""
    chain = ""
    for step in range(1, steps + 1):
        chain = link(chain, step)
    return chain


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(NAME)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--checkpoint-steps", type=int, default=0, help="0: at the end and at SIGTERM alone")
    parser.add_argument("--checkpoint-bytes", type=int, default=0, help="of ballast in each checkpoint")
    parser.add_argument("--hold", action="store_true",
                        help="in attempt 1, wait after the first checkpoint for /dtj/run/go-on")  # fmt: skip
    parser.add_argument("--fail-at", type=int, default=0, help="in attempt 1, exit with 3 after this step")
    parser.add_argument("--tensorboard", action="store_true", help="write event files")
    return parser.parse_args(sys.argv[2:])


def say(text: str) -> None:
    print(text, flush=True)


# --- peers ---------------------------------------------------------------------------------------


def is_told(what: str) -> bool:
    """Whether a test made /dtj/run/WHAT."""
    return Path(contract.root(), contract.RUN, what).exists()


def answer(connection: socket.socket, told_to_end: threading.Event, *, may_leave: bool = False) -> bool:
    """Answer the primary until the training is over; False: the primary is gone."""
    while (asked := connection.recv(1)) == STEP:
        if may_leave and is_told("leave"):
            say("this rank has no more examples")
            sys.exit(0)
        if is_told("hang"):
            waits_for_an_answer_that_never_comes(told_to_end)
        connection.sendall(SAVE_AND_END if told_to_end.is_set() else STEP)
    return asked == END


def waits_for_an_answer_that_never_comes(told_to_end: threading.Event) -> None:
    say("this rank hangs")
    told_to_end.wait()


class PeerGone(Exception):
    """A process without which the training can't go on."""


class Peer:
    """Another process, as the primary sees it."""

    def __init__(self, address: str, *, needed: bool, connection: socket.socket | None = None) -> None:
        self.address = address
        self.needed = needed
        self._connection = connection

    def connect(self) -> None:
        """Wait until the peer answers: the peer's name may not be known yet, nor its port be open."""
        host, _, port = self.address.rpartition(":")
        while self._connection is None:
            try:
                self._connection = socket.create_connection((host, int(port)), PEER_SECONDS)
                self._connection.settimeout(None if self.needed else PEER_SECONDS)
            except OSError:
                if not self.needed:
                    return
                time.sleep(0.1)

    def ask(self, what: bytes = STEP) -> bytes:
        """The peer's answer. Raises PeerGone for a needed peer; another peer is tried again at the next step."""
        try:
            if self._connection is None:
                self.connect()
            if self._connection is None:
                return STEP
            self._connection.sendall(what)
            if what == END:
                return END
            if not (said := self._connection.recv(1)):
                raise ConnectionResetError("connection closed by peer")
            return said
        except OSError as error:
            self._connection = None
            if self.needed:
                raise PeerGone(f"{self.address} does not answer: {error}") from error
            return STEP


# --- the primary -----------------------------------------------------------------------------------


class Training:
    """Rank 0, or the chief."""

    def __init__(self, options: argparse.Namespace, peers: list[Peer], world_size: int) -> None:
        self._options, self._peers = options, peers
        self._root = Path(contract.root())
        self._first_attempt = os.environ.get(contract.ENV_ATTEMPT, "1") == "1"
        self._stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        self._metrics = MetricsFile(world_size)
        self._step, self._chain, self._logged_at = 0, "", 0.0
        self._events: ScalarWriter | None = None

    def run(self) -> None:
        options = self._options
        self._resume()
        for peer in self._peers:
            peer.connect()
        if options.tensorboard:
            self._events = ScalarWriter(rotate_seconds=2, first_step=self._step)
        self._metrics.add("start", {"step": self._step, "totalSteps": options.steps})
        begun = self._step
        while self._step < options.steps:
            self._take_step()
            if options.checkpoint_steps and self._step % options.checkpoint_steps == 0 and not self._hurries:
                self._save()
                if options.hold and self._first_attempt and self._step == begun + options.checkpoint_steps:
                    self._wait_for_the_word()
            if self._first_attempt and self._step == options.fail_at:
                say("the loss is not a number any more")
                progress.flush()
                os._exit(3)
            if self._stop.is_set():
                self._save()
                self._tell_peers_to_end()
                say(f"stopped at step {self._step}, with a checkpoint")
                sys.exit(128 + signal.SIGTERM)
        self._finish()

    def _take_step(self) -> None:
        answers = [peer.ask() for peer in self._peers]
        if SAVE_AND_END in answers:
            self._stop.set()
        if not self._hurries:
            self._stop.wait(self._options.step_seconds)
        self._step += 1
        self._chain = link(self._chain, self._step)
        loss, now = 1 / self._step, time.monotonic()
        progress.report(
            step=self._step, total_steps=self._options.steps, epoch=1, loss=loss, examples_per_second=1000.0
        )
        if self._events is not None:
            self._events.add(self._step, {"train/loss": loss})
        if now - self._logged_at >= LOG_SECONDS or self._step == self._options.steps:
            self._logged_at = now
            self._metrics.add("train", {"step": self._step, "loss": loss, "examples": self._step * 100})
            say(f"step {self._step}/{self._options.steps}: loss {loss:.4f}")

    @property
    def _hurries(self) -> bool:
        return is_told("hurry")

    def _wait_for_the_word(self) -> None:
        while not is_told("go-on") and not self._stop.is_set():
            time.sleep(0.05)

    def _finish(self) -> None:
        accuracy = 0.9
        self._metrics.add("test", {"step": self._step, "accuracy": accuracy})
        if self._events is not None:
            self._events.add(self._step, {"test/accuracy": accuracy})
            self._events.close()
        self._save(accuracy)
        model = self._root / contract.MODEL
        model.mkdir(parents=True, exist_ok=True)
        (model / MODEL_FILE).write_text(self._chain)
        self._metrics.add("end", {"step": self._step, "steps": self._step, "accuracy": accuracy})
        progress.report(step=self._step, total_steps=self._step, accuracy=accuracy, final=True)
        self._tell_peers_to_end()
        say("the model is written")

    def _tell_peers_to_end(self) -> None:
        for peer in self._peers:
            peer.ask(END)

    def _save(self, accuracy: float | None = None) -> None:
        state = {"step": self._step, "steps": self._options.steps, "chain": self._chain, "accuracy": accuracy}

        def write(folder: Path) -> None:
            (folder / STATE_FILE).write_text(json.dumps(state))
            (folder / "ballast").write_bytes(bytes(self._options.checkpoint_bytes))

        checkpoints.save(self._step, write, metric=accuracy)

    def _resume(self) -> None:
        newest = checkpoints.newest()
        if newest is not None:
            state = json.loads((newest.path / STATE_FILE).read_text())
            self._step, self._chain = state["step"], state["chain"]
            say(f"resuming from the checkpoint of step {self._step}, epoch 1")


# --- what each process of a strategy does ------------------------------------------------------------


def horovod(options: argparse.Namespace) -> None:
    rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    say(f"one of {size} ranks, on {socket.gethostname()}")
    places = rank_places(size) if size > 1 else []
    if rank == 0:
        try:
            peers = [Peer(f"{host}:{port}", needed=True) for host, port in places[1:]]
            Training(options, peers, size).run()
        except PeerGone as error:
            sys.exit(f"HorovodInternalError: {error}")
    else:
        with socket.create_server(places[rank]) as listener:
            connection, _ = listener.accept()
        follow(connection, "HorovodInternalError: rank 0 is gone")


def rank_places(size: int) -> list[tuple[str, int]]:
    """Host and port of each rank. Ranks fill a host before the next one."""
    file = Path(os.environ.get(contract.ENV_CONFIG_DIR, contract.CONFIG_DIR), "hostfile")
    hosts = [line.split()[0] for line in file.read_text().splitlines()]
    slots = size // len(hosts)
    return [(hosts[rank // slots], RANK_PORT + rank) for rank in range(size)]


def follow(connection: socket.socket, loss: str, *, may_leave: bool = False) -> None:
    """Another rank than 0: meet rank 0 in each step. `loss`: what the rank says when rank 0 is gone."""
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    with connection:
        try:
            over = answer(connection, told, may_leave=may_leave)
        except OSError:
            over = False
    if told.is_set():
        sys.exit(128 + signal.SIGTERM)
    if not over:
        sys.exit(loss)


CLOSED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [{}]"
)
TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: {}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
"""What PyTorch says."""


def torch_distributed(options: argparse.Namespace) -> None:
    """A rank of PyTorch: rank 0 listens at MASTER_PORT, as its store does, and the others connect."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    say(f"one of {size} ranks, on {socket.gethostname()}")
    if rank == 0:
        try:
            Training(options, accept_ranks(size - 1, port), size).run()
        except PeerGone as error:
            sys.exit(CLOSED.format(error))
        return
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            connection = socket.create_connection((host, port), PEER_SECONDS)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"torch.distributed.DistNetworkError: failed to connect to {host}:{port}: {error}")
            time.sleep(0.1)
    connection.settimeout(None)
    follow(connection, CLOSED.format(f"{host}:{port}"), may_leave=True)


def accept_ranks(count: int, port: int) -> list[Peer]:
    """Wait until all other ranks have connected."""
    taken = os.environ.get(ENV_TAKES_PORT) == os.environ[contract.ENV_ATTEMPT]
    with socket.create_server(("", port)) if taken else contextlib.nullcontext():
        try:
            listener = socket.create_server(("", port))
        except OSError:
            sys.exit(TAKEN.format(port))
    with listener:
        accepted = [listener.accept() for _ in range(count)]
    return [
        Peer(f"{place[0]}:{place[1]}", needed=True, connection=connection) for connection, place in accepted
    ]


def parameter_server(options: argparse.Namespace) -> None:
    config = json.loads(os.environ[contract.ENV_TF_CONFIG])
    role, cluster = config["task"]["type"], config["cluster"]
    if role == "evaluator":
        evaluate()
    elif role == "chief":
        peers = [Peer(address, needed=True) for address in cluster["ps"]]
        peers += [Peer(address, needed=False) for address in cluster["worker"]]
        try:
            Training(options, peers, 1 + len(cluster["worker"])).run()
        except PeerGone as error:
            progress.failed("ConnectionLost", f"parameter server {error}")
            sys.exit(contract.EXIT_UNAVAILABLE)
    else:
        listener = socket.create_server(("", contract.TENSORFLOW_PORT))
        while True:
            connection, _ = listener.accept()
            # A chief that is gone is followed by another; the server stays.
            threading.Thread(target=_answer_quietly, args=(connection,), daemon=True).start()


def _answer_quietly(connection: socket.socket) -> None:
    try:
        with connection:
            answer(connection, threading.Event())
    except OSError:
        return


def evaluate() -> None:
    """Test each checkpoint as it comes, until the training's last."""
    metrics, tested = MetricsFile(1), ""
    final = False
    while not final:
        time.sleep(0.1)
        newest = checkpoints.newest()
        try:
            text = (newest.path / STATE_FILE).read_text() if newest else ""
        except OSError:
            continue  # The checkpoint was replaced or pruned meanwhile.
        if text != tested:
            tested, state = text, json.loads(text)
            final = state["accuracy"] is not None
            accuracy = state["accuracy"] if final else 0.5
            metrics.add("test", {"step": state["step"], "accuracy": accuracy})
            progress.report(step=state["step"], accuracy=accuracy, final=final)
    say("that was the last checkpoint")


if __name__ == "__main__":
    chosen = read_options()
    if contract.ENV_TF_CONFIG in os.environ:
        parameter_server(chosen)
    elif "OMPI_COMM_WORLD_RANK" in os.environ:
        horovod(chosen)
    else:
        torch_distributed(chosen)
