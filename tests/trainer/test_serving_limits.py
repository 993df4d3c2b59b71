"""What `dtj serve` refuses before it has it in memory, and a fuzz of hostile requests.

* bodies and pictures that are too large, or too slow
* more requests than there is room for
* a seeded fuzz against a server in a process of its own
"""

from __future__ import annotations

import json
import random
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.trainer.conftest import until
from tests.trainer.served_models import Client, file_of, form, pixels, served, write_model
from tests.trainer.serving_processes import serving

MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[Client]:
    with served(f"m={model}", "--max-body=1", "--max-held=1", "--max-pixels=1000000") as ready:
        yield ready


def chunks(size: int) -> Iterator[bytes]:
    for _ in range(size // 65536):
        yield bytes(65536)


@pytest.mark.parametrize("path", ["/predictions/m", "/v2/models/m/infer"])
def test_a_body_above_the_limit_is_refused_by_its_declared_size(client: Client, path: str) -> None:
    answer = client("POST", path, bytes(MIB + 1))
    assert answer.status == 413
    assert f"more than {MIB} bytes" in answer.body.decode()
    with open_request(client, path, f"Content-Length: {10**15}") as connection:
        assert b" 413 " in connection.recv(100)  # Without a byte of the body.


def test_json_above_its_own_limit_is_refused_before_it_is_parsed(model: Path) -> None:
    with served(f"m={model}", "--max-json=1") as client:
        answer = client("POST", "/v2/models/m/infer", b" " * (MIB + 1))
        assert answer.status == 413
        assert f"more than {MIB} bytes of JSON" in answer.json["error"]
        assert "--max-json" in answer.json["error"]


@pytest.mark.parametrize("path", ["/predictions/m", "/v2/models/m/infer"])
def test_a_body_in_chunks_is_refused_when_it_passes_the_limit(client: Client, path: str) -> None:
    answer = client("POST", path, chunks(3 * MIB), Transfer_Encoding="chunked")
    assert answer.status == 413
    assert f"more than {MIB} bytes" in answer.body.decode()
    assert client("PUT", "/predictions/m", file_of(pixels(0))).status == 200


def bomb(side: int) -> bytes:
    """A PNG of side x side black pixels, in some 50 KB for 20,000."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes((side + 7) // 8 + 1)) for _ in range(side)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_a_picture_with_too_many_pixels_is_not_decoded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    monkeypatch.setattr("dtj_trainer.serving.pictures.pixels_of", lambda *_, **__: decoded.append(1))
    file = bomb(20_000)
    assert len(file) < 60_000
    answer = client("PUT", "/predictions/m", file)
    assert answer.status in (400, 413)  # Pillow itself refuses to open the largest.
    assert "pixels" in answer.json["message"]
    answer = client("PUT", "/predictions/m", bomb(1001))
    assert answer.status == 413
    assert "1001 x 1001 = 1002001 pixels; at most 1000000" in answer.json["message"]
    assert not decoded


def open_request(client: Client, path: str, *headers: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=30 * PATIENCE)
    head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", *headers])
    connection.sendall(f"{head}\r\n\r\n".encode())
    return connection


def test_a_body_that_does_not_come_is_given_up(model: Path) -> None:
    with (
        served(f"m={model}", "--body-timeout=0.2") as client,
        open_request(client, "/predictions/m", "Content-Length: 100") as connection,
    ):
        connection.sendall(b"begun")
        answer = b""
        while more := connection.recv(4096):  # The server closes the connection.
            answer += more
    assert b" 408 " in answer.split(b"\r\n")[0]
    assert b"within 0.2 seconds" in answer


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /predictions/m HTTP/1.1\r\nHost: x\r\n",
        b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\nGET /ping HT",
        b"PUT /predictions/m HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\nrefused",
    ],
    ids=["nothing", "half a request", "half a second request", "a body that was refused"],
)
def test_a_request_that_does_not_come_is_given_up(model: Path, sent: bytes) -> None:
    with (
        served(f"m={model}", "--body-timeout=0.2", "--max-body=1") as client,
        socket.create_connection(("127.0.0.1", client.port), timeout=30 * PATIENCE) as connection,
    ):
        connection.sendall(sent)
        while connection.recv(4096):
            pass  # Until the server closes the connection.
        assert client("GET", "/ping").status == 200


@pytest.mark.parametrize(
    ("words", "sent", "other"),
    [(("--max-waiting=1",), 1, 100), (("--max-body=1", "--max-held=1"), 700_000, 500_000)],
    ids=["requests", "bytes"],
)
def test_a_request_without_room_gets_429_and_the_others_go_on(
    model: Path, words: tuple[str, ...], sent: int, other: int
) -> None:
    with served(f"m={model}", *words) as client:
        file = file_of(pixels(0)) + bytes(900_000)  # What follows a picture's end is not read.
        with open_request(client, "/predictions/m", f"Content-Length: {len(file)}") as connection:
            connection.sendall(file[:sent])
            until(
                lambda: f"dtj_serve_held_bytes {float(sent)}" in client.metrics, "the first request is held"
            )
            answer = client("PUT", "/predictions/m", file[:other])
            assert answer.status == 429
            assert answer.headers["Retry-After"] == "1"
            assert "try again" in answer.json["message"]
            connection.sendall(file[sent:])
            assert b" 200 " in connection.recv(100)
        assert client("PUT", "/predictions/m", file_of(pixels(0))).status == 200
        assert 'dtj_serve_refused_total{reason="overfull"}' in client.metrics


def test_a_client_that_goes_away_leaves_its_room(model: Path) -> None:
    with served(f"m={model}", "--max-waiting=1") as client:
        for _ in range(3):
            with open_request(client, "/predictions/m", "Content-Length: 1000") as connection:
                connection.sendall(b"begun")
        until(
            lambda: client("PUT", "/predictions/m", file_of(pixels(0))).status == 200, "there is room again"
        )


SEED = 20261125
REQUESTS = 400
_PATHS = (
    "/predictions/m",
    "/v2/models/m/infer",
    "/v2/models/m",
    "/models/m",
    "/metrics",
    "/predictions/%00",
    "/v2/../etc",
)


def damaged(chance: random.Random, content: bytes) -> bytes:
    """The content with some bytes changed, removed or repeated."""
    found = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(4):
            case 0:
                found[at : at + chance.randint(1, 40)] = chance.randbytes(chance.randint(0, 40))
            case 1:
                del found[at : at + chance.randint(1, len(found) + 1)]
            case 2:
                found[at:at] = found[: chance.randint(0, 2000)]
            case _:
                found[at:at] = chance.choice(
                    [b"[", b"{", b"1e999,", b"-1,", b"null", b"\xff\xd8\xff", b"\r\n--b0undary\r\n"]
                )
    return bytes(found)


def hostile(chance: random.Random, good: list[tuple[str, bytes, str]]) -> tuple[bytes, bool]:
    """A request as bytes: damaged content, headers or framing; and whether the framing is whole."""
    path, content, kind = chance.choice(good)
    body = damaged(chance, content) if chance.random() < 0.9 else chance.randbytes(chance.randint(0, 5000))
    headers = [f"Content-Type: {kind}", "Host: x"]
    if chance.random() < 0.2:
        headers.append(
            f"Inference-Header-Content-Length: {chance.choice(['0', '7', '-1', '1e3', '99999999999', 'x'])}"
        )
    more = chance.choice([-3, 5, 100_000]) if body and chance.random() < 0.1 else 0
    whole = not more
    if chance.random() < 0.15:
        headers.append("Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:100], body[100:]) if part)
        end = chance.choice([b"0\r\n\r\n", b"zz\r\n", b""])
        body, whole = body + end, end != b""
    else:
        headers.append(f"Content-Length: {max(len(body) + more, 0)}")
    path = chance.choice(_PATHS) if chance.random() < 0.15 else path
    method = "POST" if chance.random() < 0.9 else chance.choice(["PUT", "GET", "BREW"])
    head = f"{method} {path} HTTP/1.1\r\n" + "\r\n".join(headers)
    request = head.encode() + b"\r\n\r\n" + body
    return (damaged(chance, request), False) if chance.random() < 0.1 else (request, whole)


def status_of(port: int, request: bytes, *, whole: bool, cut: bool) -> int | None:
    """Send bytes; the status of the answer, None without one. A request that is not whole is ended by EOF."""
    with socket.create_connection(("127.0.0.1", port), timeout=30 * PATIENCE) as connection:
        try:
            connection.sendall(request)
            if cut:
                return None
            if not whole:
                connection.shutdown(socket.SHUT_WR)
            line = connection.makefile("rb").readline()
        except (ConnectionResetError, BrokenPipeError):
            return None
    return int(line.split()[1]) if line else None


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_hostile_requests_neither_end_nor_fill_the_server(model: Path, tmp_path: Path) -> None:
    file = file_of(pixels(0))
    request = {
        "inputs": [{"name": "pixels", "shape": [1, 1, 8, 8], "datatype": "UINT8", "data": list(range(64))}]
    }
    predict, infer = "/predictions/m", "/v2/models/m/infer"
    good = [
        (predict, file, "image/png"),
        (predict, file_of(pixels(1, 3, 40), "JPEG"), "image/jpeg"),
        (predict, *form(file)),
        (predict, bomb(20_000), "image/png"),
        (infer, json.dumps(request).encode(), "application/json"),
    ]
    chance = random.Random(SEED)
    with serving(tmp_path, f"m={model}", "--body-timeout=5") as (process, client):
        for _ in range(5):
            assert client("PUT", "/predictions/m", file).status == 200
        before = resident(process.pid)
        found: dict[int | None, int] = {}
        for number in range(REQUESTS):
            sent, whole = hostile(chance, good)
            status = status_of(client.port, sent, whole=whole, cut=chance.random() < 0.05)
            found[status] = found.get(status, 0) + 1
            if number % 20 == 0:
                assert client("PUT", "/predictions/m", file).status == 200
        assert process.poll() is None
        assert max(status or 0 for status in found) < 500, found
        assert found[200] > 0
        assert found[400] > REQUESTS / 4, found
        assert resident(process.pid) - before < 200 * MIB


def test_options_that_can_not_be_are_refused(run_serve: Callable[..., tuple[int, str]], model: Path) -> None:
    for words, said in (
        (["m"], "'m' has to be NAME=FOLDER or NAME=URI"),
        (["m=a", "m=b"], "the name m is given twice"),
        ([f"m={model}", "--max-held=1"], "--max-held=1 has to be at least --max-body=16"),
        ([f"m={model}", "--max-batch=0"], "--max-batch=0 has to be at least 1"),
        ([f"m={model}", "--poll=nan"], "--poll=nan has to be at least 0.001"),
        ([f"m={model}", "--max-delay=inf"], "--max-delay=inf has to be "),
        ([f"m={model}", "--port=1", "--host=192.0.2.1"], "--host=192.0.2.1 --port=1 can't be listened on: "),
        ([f"m={model}", "--port=70000"], "--host=127.0.0.1 --port=70000 can't be listened on: "),
        ([f"m={model}", "--token-file=/nowhere"], "--token-file=/nowhere can't be read"),
    ):
        code, printed = run_serve(*words)
        assert code == 78
        assert f"Misconfigured: {said}" in printed


@pytest.fixture
def run_serve(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """The exit code and stderr of a server that does not start."""
    from dtj_trainer.serving.errors import exit_on_error
    from dtj_trainer.serving.serve import prepared
    from dtj_trainer.serving.serve_options import read_options

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended, exit_on_error(), prepared(read_options(words)):
            pass
        return int(ended.value.code or 0), capsys.readouterr().err

    return run
