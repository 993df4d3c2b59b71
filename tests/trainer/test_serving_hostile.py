"""Hostile requests against `dtj serve` in a process of its own, with good requests beside them.

`make test-serve-hostile` sends 200,000, `make test` 400. The seed decides what each client sends, and in which order.
How the requests of several clients mix is left to chance.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
from tests.patience import PATIENCE
from tests.trainer.conftest import until
from tests.trainer.hostile_requests import bomb, good_requests, hostile
from tests.trainer.served_models import file_of, pixels, probabilities_of, write_model
from tests.trainer.serving_processes import serving

SEED = int(os.environ.get("DTJ_SEED", "20261125"))
REQUESTS = int(os.environ.get("DTJ_HOSTILE") or 400)
CLIENTS, SLOW = 6, 16
LARGE_EVERY = 2000
"""One request of so many is a picture as large as the server decodes."""
MIB = 1 << 20


def status_of(port: int, request: bytes, *, whole: bool, cut: bool) -> int | None:
    """Send bytes; the status of the answer, None without one. A request that is not whole is ended by EOF.

    A server that refuses a request early resets the connection, so that sending and shutdown() fail.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=30 * PATIENCE) as connection:
        try:
            connection.sendall(request)
            if cut:
                return None
            if not whole:
                connection.shutdown(socket.SHUT_WR)
            line = connection.makefile("rb").readline()
        except OSError as error:
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise
            return None
    return int(line.split()[1]) if line else None


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Beside:
    """Threads that do the same until the end of the block, which raises what they raised."""

    def __init__(self, *work: Callable[[], None]) -> None:
        self._done = threading.Event()
        self._pool = ThreadPoolExecutor(len(work))
        self._work = work

    def __enter__(self) -> None:
        self._running = [self._pool.submit(self._repeat, each) for each in self._work]

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._pool.shutdown()
        for each in self._running:
            each.result()

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._done.wait(0.01):
            work()


class SlowClients:
    """Each sends a byte now and then, until the server gives it up; then another comes in its place."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self._port, self._chance = port, chance
        self._open: list[socket.socket] = []
        self.given_up = 0

    def go_on(self) -> None:
        """Let each send a byte."""
        while len(self._open) < SLOW:
            new = socket.create_connection(("127.0.0.1", self._port), timeout=30 * PATIENCE)
            new.sendall(b"POST /predictions/m HTTP/1.1\r\nHost: x\r\n")
            if self._chance.random() < 0.5:
                new.sendall(b"Content-Length: 1000000\r\n\r\n")
            self._open.append(new)
        for each in [*self._open]:
            try:
                each.sendall(b"x")
            except (ConnectionResetError, BrokenPipeError):
                each.close()
                self._open.remove(each)
                self.given_up += 1

    def close(self) -> None:
        """Cut all of them off."""
        for each in self._open:
            each.close()


def test_hostile_requests_neither_end_nor_fill_the_server(tmp_path: Path) -> None:
    good, large = good_requests(), bomb(4000, colour=True)
    picture = pixels(0)
    file, wanted = file_of(picture), sorted(probabilities_of(picture).tolist(), reverse=True)[:5]
    answered: Counter[int | None] = Counter()
    most, right = 0, 0

    with serving(tmp_path, f"m={write_model(tmp_path / 'm')}", "--body-timeout=1") as (process, client):
        (server,) = psutil.Process(process.pid).children()

        def ask_well() -> None:
            nonlocal most, right
            answer = client("PUT", "/predictions/m", file)
            assert answer.status == 200, answer
            np.testing.assert_allclose([*answer.json.values()], wanted, rtol=1e-4)
            most, right = max(most, resident(server.pid)), right + 1

        def attack(number: int) -> Counter[int | None]:
            chance = random.Random(f"{SEED}/{number}")
            found: Counter[int | None] = Counter()
            for place in range(REQUESTS // CLIENTS):
                if (number + place) % LARGE_EVERY == 0:
                    found[client("PUT", "/predictions/m", large).status] += 1
                    continue
                sent, whole = hostile(chance, good)
                found[status_of(client.port, sent, whole=whole, cut=chance.random() < 0.05)] += 1
            return found

        for _ in range(5):
            ask_well()
        before, right = resident(server.pid), 0
        slow = SlowClients(client.port, random.Random(SEED))
        with Beside(ask_well, slow.go_on), ThreadPoolExecutor(CLIENTS) as pool:
            for found in pool.map(attack, range(CLIENTS)):
                answered += found
            until(lambda: slow.given_up >= 3 and right >= 5, "slow clients are given up, good ones answered")
        slow.close()
        assert process.poll() is None
        ask_well()
        print(
            f"{sum(answered.values())} requests, statuses {dict(answered)}; {right} good ones and {slow.given_up}"
        )
        print(
            f"slow ones beside them; RSS {before / MIB:.0f} MiB, at most {(most - before) / MIB:.0f} MiB more"
        )
    assert max(status or 0 for status in answered) < 500, answered
    assert answered[200] > 0
    assert answered[400] > REQUESTS / 4, answered
    assert most - before < 200 * MIB
