"""The routes of `dtj serve`: TorchServe's, and those of the Open Inference Protocol.

* pictures: files and forms, labels, preprocessing
* models
* tensors in JSON and in binary form
* requests that are refused
* token and metrics
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.trainer.served_models import (
    CLASSES,
    LABELS,
    SIZE,
    Client,
    file_of,
    form,
    logits_of,
    pixels,
    probabilities_of,
    served,
    write_model,
)

from dtj_trainer.data.formats.images import PictureForm, pixels_of
from dtj_trainer.serving.description import Description, Preprocessing
from dtj_trainer.serving.torchserve import example_of, is_small, prepared
from dtj_trainer.train.model_files import picture_facts

LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "grey", 1)
    write_model(folder / "job/model", 2, channels=3)
    write_model(folder / "tensors", 3, preprocessing=None, labels=None)
    words = [
        f"{name}={folder / place}"
        for name, place in (("grey", "grey"), ("colour", "job"), ("tensors", "tensors"))
    ]
    with served(*words, "--max-batch=8") as ready:
        yield ready


def test_a_picture_gets_the_five_likeliest_classes(client: Client) -> None:
    picture = pixels(0)
    wanted = probabilities_of(picture, 1)
    for method in ("PUT", "POST"):
        answer = client(method, "/predictions/grey", file_of(picture))
        assert answer.status == 200
        assert list(answer.json) == [str(place) for place in np.argsort(-wanted)[:5]]
        assert list(answer.json.values()) == pytest.approx(sorted(wanted, reverse=True)[:5], rel=1e-4)
    named = client("PUT", "/predictions/grey?labels=true", file_of(picture)).json
    assert named == {LABELS[int(place)]: value for place, value in answer.json.items()}


def test_a_form_is_as_good_as_a_file(client: Client) -> None:
    body, kind = form(file_of(pixels(0)))
    answer = client("POST", "/predictions/grey", body, Content_Type=kind)
    assert answer.status == 200
    assert answer.json == client("PUT", "/predictions/grey", file_of(pixels(0))).json


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("shape", [(3, 40, 40), (1, 70, 70), (3, 300, 300)], ids=str)
def test_a_picture_of_any_size_is_prepared_as_in_the_training(
    client: Client, kind: str, shape: tuple[int, int, int]
) -> None:
    file = file_of(pixels(5, shape[0], shape[1]), kind)
    in_training = pixels_of(file, PictureForm(SIZE, 3), where="")
    wanted = probabilities_of(in_training, 2)
    answer = client("PUT", "/predictions/colour", file).json
    assert list(answer.values()) == pytest.approx(sorted(wanted, reverse=True)[:5], rel=1e-4)


def test_a_model_turns_pictures_as_its_training_did() -> None:
    exif, written = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    Image.fromarray(pixels(5, 3, 24).transpose(1, 2, 0)).save(written, "JPEG", exif=exif)
    found = {}
    for orient in (True, False):
        facts = picture_facts((3, SIZE, SIZE), "NCHW", LABELS, orient)
        form = Description.from_json(json.dumps(facts).encode()).preprocessing
        assert form is not None
        found[orient] = example_of(written.getvalue(), form, 10**6, np.dtype(np.uint8))[0]
        in_training = pixels_of(written.getvalue(), PictureForm(SIZE, 3, orient), where="")
        np.testing.assert_array_equal(found[orient], in_training)
    assert not np.array_equal(found[True], found[False])


def test_pixels_are_prepared_as_model_json_says() -> None:
    picture = pixels(1, 3)
    form = Preprocessing(SIZE, 3, "NHWC", (0.0, 1.0), (0.5, 0.4, 0.3), (0.1, 0.2, 0.4), invert=True)
    found = prepared(picture, form, np.dtype(np.float32))
    wanted = ((255 - picture.astype(np.float64)) / 255 - np.array(form.mean)[:, None, None]) / np.array(
        form.deviation
    )[:, None, None]
    assert (found.shape, found.dtype) == ((SIZE, SIZE, 3), np.float32)
    np.testing.assert_allclose(found, wanted.transpose(1, 2, 0), rtol=1e-5, atol=1e-5)
    plain = prepared(picture, Preprocessing(SIZE, 3, "NCHW"), np.dtype(np.uint8))
    assert np.array_equal(plain, picture)


def test_models_are_listed_and_described(client: Client) -> None:
    listed = client("GET", "/models").json["models"]
    assert [each["modelName"] for each in listed] == ["grey", "colour", "tensors"]
    assert listed[1]["modelUrl"].endswith("job/model")
    (found,) = client("GET", "/models/grey").json
    assert (found["modelName"], found["status"], found["steps"], found["labels"]) == (
        "grey",
        "READY",
        1,
        LABELS,
    )
    assert client("GET", "/ping").json == {"status": "Healthy"}
    routes = client("GET", "/openapi.json").json["paths"]
    assert {"/predictions/{name}", "/v2/models/{name}/infer"} <= routes.keys()


def test_metadata_and_health(client: Client) -> None:
    assert client("GET", "/v2").json["extensions"] == ["binary_tensor_data"]
    assert client("GET", "/v2/health/live").json == {"live": True}
    assert client("GET", "/v2/health/ready").json == {"ready": True}
    found = client("GET", "/v2/models/colour").json
    assert found["inputs"] == [{"name": "pixels", "datatype": "UINT8", "shape": [-1, 3, SIZE, SIZE]}]
    assert found["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, CLASSES]}]
    version = f"/v2/models/colour/versions/{found['versions'][0]}"
    assert client("GET", version).json == found
    assert client("GET", f"{version}/ready").json == {"name": "colour", "ready": True}
    missing = client("GET", "/v2/models/colour/versions/7")
    assert (missing.status, missing.json) == (
        404,
        {"error": f"the model colour has no version '7', only {found['versions'][0]}"},
    )


def test_versions_in_the_path(client: Client) -> None:
    version = client("GET", "/v2/models/grey").json["versions"][0]
    file = file_of(pixels(1))
    plain = client("PUT", "/predictions/grey", file)
    for method in ("PUT", "POST"):
        assert client(method, f"/predictions/grey/{version}", file).body == plain.body
    assert client("GET", f"/models/grey/{version}").json == client("GET", "/models/grey/all").json
    for path in ("/predictions/grey/1.0", "/models/grey/1.0"):
        answer = client("PUT" if "pred" in path else "GET", path, file if "pred" in path else None)
        assert answer.status == 404
        assert f"has no version '1.0', only {version}" in answer.json["message"]


def test_an_empty_list_of_outputs_asks_for_all(client: Client) -> None:
    inputs = {"inputs": [tensor(batch(1))]}
    assert client.infer("tensors", {**inputs, "outputs": []}).json == client.infer("tensors", inputs).json


def batch(count: int, channels: int = 1) -> np.ndarray:
    return np.stack([pixels(seed, channels) for seed in range(count)])


def tensor(values: np.ndarray, data: Any = None) -> dict[str, Any]:
    return {
        "name": "pixels",
        "shape": list(values.shape),
        "datatype": "UINT8",
        "data": values.ravel().tolist() if data is None else data,
    }


@pytest.mark.parametrize("count", [1, 2, 7, 8])
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_tensors_in_json(client: Client, count: int, nested: bool) -> None:
    given = batch(count)
    request = {"id": "mine", "inputs": [tensor(given, given.tolist() if nested else None)]}
    answer = client.infer("tensors", request).json
    assert (answer["id"], answer["model_name"]) == ("mine", "tensors")
    (output,) = answer["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("logits", "FP32", [count, CLASSES])
    found = np.array(output["data"]).reshape(count, CLASSES)
    np.testing.assert_allclose(found, logits_of(given, 3), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("asked", ["output", "all", "none"])
def test_tensors_in_binary_form(client: Client, asked: str) -> None:
    given = batch(3)
    one = {key: value for key, value in tensor(given).items() if key != "data"}
    request: dict[str, Any] = {"inputs": [{**one, "parameters": {"binary_data_size": given.nbytes}}]}
    if asked == "output":
        request["outputs"] = [{"name": "logits", "parameters": {"binary_data": True}}]
    elif asked == "all":
        request["parameters"] = {"binary_data_output": True}
    header = json.dumps(request).encode()
    body = header + given.tobytes()
    answer = client("POST", "/v2/models/tensors/infer", body, **{LENGTH.replace("-", "_"): str(len(header))})
    assert answer.status == 200
    if asked == "none":
        found = np.array(answer.json["outputs"][0]["data"])
    else:
        length = int(answer.headers[LENGTH])
        (output,) = json.loads(answer.body[:length])["outputs"]
        assert output["parameters"]["binary_data_size"] == len(answer.body) - length
        found = np.frombuffer(answer.body[length:], "<f4")
    np.testing.assert_allclose(found.reshape(3, CLASSES), logits_of(given, 3), rtol=1e-4, atol=1e-4)


GOOD = tensor(batch(1))
WHOLE = json.dumps({"inputs": [GOOD]}).encode()
WRONG: dict[str, tuple[Any, str]] = {
    "no object": ([], "has to be a JSON object"),
    "no inputs": ({}, "`inputs`"),
    "another input": ({"inputs": [{**GOOD, "name": "other"}]}, "each of pixels"),
    "an input twice": ({"inputs": [GOOD, GOOD]}, "each of pixels"),
    "another type": ({"inputs": [{**GOOD, "datatype": "FP32"}]}, "the model takes UINT8"),
    "texts": ({"inputs": [{**GOOD, "datatype": "BYTES", "data": ["a"]}]}, "the model takes UINT8"),
    "another shape": ({"inputs": [{**GOOD, "shape": [1, 1, 8, 9]}]}, "the model takes ['batch', 1, 8, 8]"),
    "a shape of texts": ({"inputs": [{**GOOD, "shape": ["1", 1, 8, 8]}]}, "`shape` of pixels"),
    "an empty batch": ({"inputs": [{**GOOD, "shape": [0, 1, 8, 8], "data": []}]}, "`shape` of pixels"),
    "a large batch": ({"inputs": [{**GOOD, "shape": [9, 1, 8, 8], "data": [0] * 576}]}, "at most 8"),
    "too few values": ({"inputs": [{**GOOD, "data": [0] * 63}]}, "63 values"),
    "ragged values": ({"inputs": [{**GOOD, "data": [[[[0] * 8] * 7 + [[0] * 7]]]}]}, "form of `shape`"),
    "a value above the type": ({"inputs": [{**GOOD, "data": [256] + [0] * 63}]}, "not of UINT8"),
    "a value below the type": ({"inputs": [{**GOOD, "data": [-1] + [0] * 63}]}, "not of UINT8"),
    "a fraction": ({"inputs": [{**GOOD, "data": [0.5] + [0] * 63}]}, "not of UINT8"),
    "a huge value": ({"inputs": [{**GOOD, "data": [10**400] + [0] * 63}]}, "not of UINT8"),
    "a value of text": ({"inputs": [{**GOOD, "data": ["x" * 100_000] + [0] * 63}]}, "not of UINT8"),
    "a truth": ({"inputs": [{**GOOD, "data": [True] + [0] * 63}]}, "not of UINT8"),
    "another output": ({"inputs": [GOOD], "outputs": [{"name": "x"}]}, "the model has logits"),
    "an output twice": ({"inputs": [GOOD], "outputs": [{"name": "logits"}] * 2}, "twice"),
    "an id of number": ({"inputs": [GOOD], "id": 7}, "`id`"),
    "parameters of text": ({"inputs": [GOOD], "parameters": "x"}, "`parameters`"),
    "binary without bytes": (
        {"inputs": [{**GOOD, "parameters": {"binary_data_size": 64}}]},
        "the body ends before",
    ),
    "binary of another size": (
        {"inputs": [{**GOOD, "parameters": {"binary_data_size": 63}}]},
        "its shape and type need 64 bytes",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_told_what_is_wrong(client: Client, name: str) -> None:
    request, said = WRONG[name]
    answer = client.infer("tensors", request)
    assert answer.status == 400
    assert answer.json.keys() == {"error"}
    assert said in answer.json["error"]


@pytest.mark.parametrize(
    ("body", "headers", "said"),
    [
        (b"{", {}, "no JSON"),
        (b'{"inputs": NaN}', {}, "NaN is no JSON"),
        (b"[" * 900 + b"]" * 900, {}, "JSON"),
        (b"[" * 90_000, {}, "more lists"),
        (b"[" + b"{}," * 90_000 + b"{}]", {}, "more values"),
        (b'["' + b'""' * 9_000, {}, "more texts"),
        (b"{}", {LENGTH: "3"}, "the body has 2 bytes"),
        (b"{}", {LENGTH: "-1"}, "no number of bytes"),
        (WHOLE + b"more", {LENGTH: str(len(WHOLE))}, "4 bytes"),
    ],
    ids=["cut", "nan", "deep", "lists", "values", "texts", "header too long", "header negative", "bytes left"],
)  # fmt: skip
def test_a_wrong_body_is_told_what_is_wrong(
    client: Client, body: bytes, headers: dict[str, str], said: str
) -> None:
    named = {name.replace("-", "_"): value for name, value in headers.items()}
    answer = client("POST", "/v2/models/tensors/infer", body, **named)
    assert answer.status == 400
    assert said in answer.json["error"]


def test_what_is_no_picture_is_refused_in_torchserves_form(client: Client) -> None:
    gif = io.BytesIO()
    Image.fromarray(pixels(0)[0]).save(gif, "GIF")
    cut = file_of(pixels(0, 3, 64))[:-900]
    deep = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(deep, "PNG")
    for body, status, said in (
        (b"", 400, "the body is empty"),
        (gif.getvalue(), 415, "neither a PNG nor a JPEG"),
        (cut, 400, "damaged"),
        (deep.getvalue(), 400, "more than 8 bits"),
        (file_of(pixels(0))[:20], 400, "can't be read"),
    ):
        answer = client("PUT", "/predictions/grey", body)
        assert answer.status == status, answer.body
        assert answer.json.keys() == {"code", "type", "message"}
        assert said in answer.json["message"]


def test_a_small_file_with_a_second_header_is_no_small_picture(client: Client) -> None:
    """Pillow takes the sizes of the last header, and the event loop decodes small pictures itself."""
    file = file_of(pixels(0))
    header = file[12:16] + (5_000).to_bytes(4) * 2 + file[24:29]
    chunk = file[8:12] + header + zlib.crc32(header).to_bytes(4)
    forged = file[:33] + chunk + file[33:]
    assert is_small(file)
    assert not is_small(forged)
    answer = client("PUT", "/predictions/grey", forged)
    assert answer.status == 413
    assert "5000 x 5000" in answer.json["message"]


def test_forms_without_a_picture_are_refused(client: Client) -> None:
    file = file_of(pixels(0))
    for body, kind, said in (
        (*form(file, "other"), "no field `data`"),
        (form(file)[0][:-20], form(file)[1], "cut off"),
        (b"nothing", form(file)[1], "can't be read"),
        (file, "multipart/form-data", "no boundary"),
        (form(file)[0].replace(b"\r\n--b0undary--", b"") + b"\r\n" + form(file)[0], form(file)[1], "twice"),
    ):
        answer = client("POST", "/predictions/grey", body, Content_Type=kind)
        assert answer.status == 400, answer.body
        assert said in answer.json["message"]


def test_unknown_names_and_routes_are_told(client: Client) -> None:
    for path, kind in (
        ("/predictions/vgg", "ModelNotFoundException"),
        ("/nothing", "ResourceNotFoundException"),
    ):
        answer = client("POST", path, b"")
        assert (answer.status, answer.json["code"], answer.json["type"]) == (404, 404, kind)
    assert "grey, colour, tensors" in client("GET", "/models/vgg").json["message"]
    assert client("POST", "/v2/models/vgg/infer", b"{}").status == 404
    assert client("DELETE", "/models").status == 405
    assert client("PUT", "/predictions/grey?labels=perhaps", file_of(pixels(0))).status == 400
    tensors = client("PUT", "/predictions/tensors", file_of(pixels(0)))
    assert tensors.status == 400
    assert "/v2/models/tensors/infer takes tensors" in tensors.json["message"]


def test_metrics_count_what_was_answered(client: Client) -> None:
    client("PUT", "/predictions/grey", file_of(pixels(0)))
    client("PUT", "/predictions/unknown", b"")
    text = client.metrics
    counted = 'dtj_serve_requests_total{model="grey",route="/predictions/{name}",status="200"}'
    assert float(text.split(counted)[1].split()[0]) >= 1
    for part in (
        'dtj_serve_requests_total{model="",route="/predictions/{name}",status="404"}',
        'dtj_serve_request_seconds_count{model="grey",route="/predictions/{name}"}',
        'dtj_serve_batch_examples_sum{model="grey"}',
        'dtj_serve_refused_total{reason="name"}',
        'dtj_serve_model_steps{model="colour"} 2.0',
        'dtj_serve_model_info{model="grey",uri="',
    ):
        assert part in text
    assert "unknown" not in text


def test_a_token_opens_everything_but_the_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "m")
    (tmp_path / "token").write_text("s3cret\n")
    for words in ((f"--token-file={tmp_path / 'token'}",), ()):
        with served(f"m={tmp_path / 'm'}", *words) as client:
            assert client("GET", "/v2/health/ready").status == 200
            for headers in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "s3cret"}):
                answer = client("PUT", "/predictions/m", file_of(pixels(0)), **headers)
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert client("GET", "/v2/models/m").json.keys() == {"error"}
            right = {"Authorization": "Bearer s3cret"}
            assert client("PUT", "/predictions/m", file_of(pixels(0)), **right).status == 200
        monkeypatch.setenv("DTJ_SERVE_TOKEN", "s3cret")
