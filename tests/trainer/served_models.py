"""Small ONNX models in the form that `dtj export` writes, servers of them, and a client."""

from __future__ import annotations

import http.client
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tests.patience import PATIENCE
from tests.trainer.conftest import until

from dtj_trainer.serving.serve import read_options, running_server
from dtj_trainer.train.model_files import write_manifest
from dtj_trainer.whole_file import write_whole

SIZE, CLASSES = 8, 10
LABELS = [f"class {number}" for number in range(CLASSES)]


def weights(seed: int, channels: int = 1) -> np.ndarray:
    """Of the network that `write_model` writes: logits are pixels, divided by 255, times these."""
    chance = np.random.default_rng(seed)
    return chance.standard_normal((channels * SIZE * SIZE, CLASSES)).astype(np.float32)


def graph_of(seed: int, channels: int = 1, dtype: int = TensorProto.UINT8) -> onnx.ModelProto:
    """A network with one layer."""
    nodes = [
        helper.make_node("Cast", ["pixels"], ["values"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["values", "most"], ["scaled"]),
        helper.make_node("Flatten", ["scaled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["logits"]),
    ]
    constants = [
        numpy_helper.from_array(weights(seed, channels), "weights"),
        numpy_helper.from_array(np.array(255, np.float32), "most"),
    ]
    pixels = helper.make_tensor_value_info("pixels", dtype, ["batch", channels, SIZE, SIZE])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])
    graph = helper.make_graph(nodes, "small", [pixels], [logits], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def write_model(
    folder: Path, seed: int = 0, *, channels: int = 1, graph: bytes | None = None, **facts: Any
) -> Path:
    """Write a model, the manifest last."""
    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "preprocessing": {"size": [SIZE, SIZE], "channels": channels, "layout": "NCHW", "range": [0, 255]},
        "output": {"meaning": "logits"},
        "labels": LABELS,
        "steps": seed,
        **facts,
    }
    content = graph_of(seed, channels).SerializeToString() if graph is None else graph
    write_whole(folder / "model.onnx", lambda path: path.write_bytes(content))
    write_whole(folder / "model.json", lambda path: path.write_text(json.dumps(described)))
    write_manifest(folder)
    return folder


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A connection for each request."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30 * PATIENCE)
        try:
            connection.request(
                method, path, body, named, encode_chunked=named.get("Transfer-Encoding") == "chunked"
            )
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    @property
    def metrics(self) -> str:
        return self("GET", "/metrics").body.decode()

    def infer(self, name: str, request: dict[str, Any]) -> Answer:
        return self("POST", f"/v2/models/{name}/infer", json.dumps(request).encode())


@contextmanager
def served(*words: object) -> Iterator[Client]:
    """Run a server with these words of its command line, in a thread of this process."""
    with running_server(read_options([*map(str, words), "--port=0"])) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        until(lambda: server.started or not thread.is_alive(), "the server listens", 20)
        try:
            yield Client(server.port)
        finally:
            server.should_exit = True
            thread.join(40 * PATIENCE)
            assert not thread.is_alive()


def pixels(seed: int, channels: int = 1, size: int = SIZE) -> np.ndarray:
    """A picture: uint8; channels, height, width."""
    return np.random.default_rng(seed).integers(0, 256, (channels, size, size)).astype(np.uint8)


def file_of(picture: np.ndarray, kind: str = "PNG") -> bytes:
    """The file of a picture."""
    rows = picture.transpose(1, 2, 0)
    written = io.BytesIO()
    Image.fromarray(rows[:, :, 0] if len(picture) == 1 else np.ascontiguousarray(rows)).save(written, kind)
    return written.getvalue()


def logits_of(pictures: np.ndarray, seed: int = 0) -> np.ndarray:
    """What the model of that seed answers to uint8 pictures (batch, channels, height, width)."""
    flat = pictures.reshape(len(pictures), -1).astype(np.float32) / np.float32(255)
    return flat @ weights(seed, pictures.shape[1])


def probabilities_of(picture: np.ndarray, seed: int = 0) -> np.ndarray:
    """The same for one picture, as probabilities."""
    logits = logits_of(picture[None], seed)[0].astype(np.float64)
    exact = np.exp(logits - logits.max())
    return np.asarray(exact / exact.sum())


def form(file: bytes, field: str = "data", boundary: str = "b0undary") -> tuple[bytes, str]:
    """A file as a field of a form, and the Content-Type."""
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="a.png"\r\n\r\n'
    body = head.encode() + file + f"\r\n--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"
