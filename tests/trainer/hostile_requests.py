"""Requests that would end or fill a server, by chance and seed."""

from __future__ import annotations

import io
import json
import random
import struct
import zlib

from PIL import Image
from tests.trainer.served_models import file_of, form, pixels


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side: int, *, colour: bool = False) -> bytes:
    """A PNG of side x side black pixels, in some 50 KB for 20,000 without colour."""
    packer = zlib.compressobj(9)
    row = bytes(1 + (3 * side if colour else (side + 7) // 8))
    rows = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, *((8, 2) if colour else (1, 0)), 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def hidden_bomb(kind: bytes, head: bytes) -> bytes:
    """A small PNG with 50 MB of zeros, compressed, in a chunk before its pixels."""
    file = file_of(pixels(0))
    after_the_header = 33
    return (
        file[:after_the_header]
        + _chunk(kind, head + zlib.compress(bytes(50_000_000), 9))
        + file[after_the_header:]
    )


def scan_bomb(scans: int, side: int = 1400) -> bytes:
    """A progressive JPEG with so many scans of 12 bytes, each of which changes all pixels."""
    written = io.BytesIO()
    Image.new("L", (side, side)).save(written, "JPEG", progressive=True, quality=90)
    file = written.getvalue()
    return file[:-2] + file[file.rindex(b"\xff\xda") : -2] * scans + file[-2:]


def good_requests() -> list[tuple[str, bytes, str]]:
    """Path, body and Content-Type of what is damaged, or is hostile as it is."""
    file = file_of(pixels(0))
    predict, infer = "/predictions/m", "/v2/models/m/infer"
    tensor = {"name": "pixels", "shape": [1, 1, 8, 8], "datatype": "UINT8"}
    text = json.dumps({"inputs": [{**tensor, "data": list(range(64))}]}).encode()
    return [
        (predict, file, "image/png"),
        (predict, file_of(pixels(1, 3, 40), "JPEG"), "image/jpeg"),
        (predict, *form(file)),
        (predict, bomb(20_000), "image/png"),
        (predict, scan_bomb(50_000), "image/jpeg"),
        (predict, hidden_bomb(b"zTXt", b"Comment\0\0"), "image/png"),
        (predict, hidden_bomb(b"iCCP", b"profile\0\0"), "image/png"),
        (infer, text, "application/json"),
        (infer, b"[" * 100_000, "application/json"),
    ]


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
