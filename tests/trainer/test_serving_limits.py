"""What `dtj serve` refuses before it has it in memory.

* bodies and pictures that are too large, or too slow
* more requests than there is room for
* options that can't be
"""

from __future__ import annotations

import gzip
import socket
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.trainer.conftest import until
from tests.trainer.hostile_requests import bomb, scan_bomb
from tests.trainer.served_models import Client, file_of, pixels, served, write_model

from dtj_trainer.serving.bodies import Unpacker

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


@pytest.mark.bound(
    "dtj serve",
    "Any client",
    "The body of a request",
    "A setting; refused by its declared size",
)
@pytest.mark.parametrize("path", ["/predictions/m", "/v2/models/m/infer"])
def test_a_body_above_the_limit_is_refused_by_its_declared_size(client: Client, path: str) -> None:
    answer = client("POST", path, bytes(MIB + 1))
    assert answer.status == 413
    assert f"more than {MIB} bytes" in answer.body.decode()
    with open_request(client, path, f"Content-Length: {10**15}") as connection:
        assert b" 413 " in connection.recv(100)  # Without a byte of the body.


@pytest.mark.bound(
    "dtj serve",
    "Any client",
    "JSON of a request",
    "A limit of its own",
)
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


@pytest.mark.bound(
    "dtj serve",
    "Any client",
    "Pixels of a picture",
    "Refused by its header",
)
def test_a_picture_with_too_many_pixels_is_not_decoded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    monkeypatch.setattr("dtj_trainer.serving.torchserve.pixels_of", lambda *_, **__: decoded.append(1))
    file = bomb(20_000)
    assert len(file) < 60_000
    answer = client("PUT", "/predictions/m", file)
    assert answer.status in (400, 413)  # Pillow itself refuses to open the largest.
    assert "pixels" in answer.json["message"]
    answer = client("PUT", "/predictions/m", bomb(1001))
    assert answer.status == 413
    assert "1001 x 1001 = 1002001 pixels; at most 1000000" in answer.json["message"]
    assert not decoded


def test_a_jpeg_with_too_many_scans_is_not_decoded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """36 KB of them take seconds of a processor, and a whole body half an hour."""
    assert client("PUT", "/predictions/m", scan_bomb(20, 40)).status == 200
    monkeypatch.setattr(
        "dtj_trainer.serving.torchserve.pixels_of", lambda *_, **__: pytest.fail("it is decoded")
    )
    answer = client("PUT", "/predictions/m", scan_bomb(100, 40))
    assert answer.status == 400
    assert "more than 100 scans" in answer.json["message"]


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


HEAD = b"POST /predictions/m HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.bound(
    "dtj serve",
    "Any client",
    "Requests in a connection without an answer",
    "A fixed number of bytes",
)
@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"X: " + bytes(b"x" * 70_000),
        HEAD + b"X: x\r\n" * 20_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + b"X: x\r\n" * 20_000,
        b"GET /" + bytes(b"x" * 70_000),
        b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n" * 1000,
    ],
    ids=["a header", "headers", "trailers", "an address", "requests"],
)
def test_what_a_connection_may_send_without_an_answer_is_limited(client: Client, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", client.port), timeout=30 * PATIENCE) as connection:
        try:
            connection.sendall(sent)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))  # Until the server closes it.
        except ConnectionError:
            answer = None
    assert answer is None or b"HTTP/1.1 400 " in answer
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


def test_options_that_can_not_be_are_refused(run_serve: Callable[..., tuple[int, str]], model: Path) -> None:
    for words, said in (
        (["m"], "'m' has to be NAME=FOLDER or NAME=URI"),
        (["m=a", "m=b"], "two models have the name m"),
        ([f"m={model}", "--max-held=1"], "--max-held=1 has to be at least --max-body=16"),
        ([f"m={model}", "--max-batch=0"], "--max-batch=0 has to be at least 1"),
        ([f"m={model}", "--poll=nan"], "--poll=nan has to be at least 0.001"),
        ([f"m={model}", "--max-delay=inf"], "--max-delay=inf has to be "),
        (
            [f"m={model}", "--port=1", "--host=192.0.2.1"],
            "the server can't listen on --host=192.0.2.1 --port=1: ",
        ),
        ([f"m={model}", "--port=70000"], "the server can't listen on --host=127.0.0.1 --port=70000: "),
        ([f"m={model}", "--token-file=/nowhere"], "--token-file=/nowhere can't be read"),
    ):
        code, printed = run_serve(*words)
        assert code == 78
        assert f"Misconfigured: {said}" in printed


@pytest.fixture
def run_serve(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """The exit code and stderr of a server that does not start."""
    from dtj_trainer.serving.errors import exit_on_error
    from dtj_trainer.serving.serve import read_options, running_server

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended, exit_on_error(), running_server(read_options(words)):
            pass
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("Deflate", lambda body: zlib.compress(body, wbits=-15)),
    ],
)
def test_a_compressed_body_is_as_good_as_a_plain_one(
    client: Client, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    file = file_of(pixels(1))
    plain, packed = client("POST", "/predictions/m", file), pack(file)
    headers = {"Content_Encoding": encoding}
    assert client("POST", "/predictions/m", packed, **headers).body == plain.body
    assert (
        client(
            "POST", "/predictions/m", iter([packed[:1], packed[1:]]), Transfer_Encoding="chunked", **headers
        ).body
        == plain.body
    )
    cut = client("POST", "/predictions/m", packed[:-6], **headers)
    assert (cut.status, b"cut off" in cut.body or b"not in the form" in cut.body) == (400, True)
    assert client("POST", "/predictions/m", packed + b"more", **headers).status == 400
    wrong = client("POST", "/predictions/m", b"no such thing", **headers)
    assert wrong.status == 400
    unknown = client("POST", "/predictions/m", packed, Content_Encoding="br")
    assert (unknown.status, unknown.headers["Accept-Encoding"]) == (415, "gzip, deflate")
    assert b"send the body uncompressed, or with gzip or deflate" in unknown.body


@pytest.mark.bound(
    "dtj serve",
    "Any client",
    "A compressed body",
    "The limit of a body; unpacked as it arrives",
)
@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_bomb_is_not_unpacked_whole(client: Client, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(bytes(64 * MIB))
    assert len(packed) < MIB
    steps = list[int]()

    class Counted(Unpacker):
        def next(self, packed: bytes) -> tuple[bytes, bytes]:
            found = super().next(packed)
            steps.append(len(found[0]))
            return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dtj_trainer.serving.bodies.Unpacker", Counted)
        name = "gzip" if pack is gzip.compress else "deflate"
        answer = client("POST", "/predictions/m", packed, Content_Encoding=name)
    assert answer.status == 413
    assert f"more than {MIB} bytes" in answer.body.decode()
    assert 0 < sum(steps) <= 2 * MIB
