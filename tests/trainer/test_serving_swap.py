"""Models that are replaced while they are served, and files that are never loaded.

* newer versions, under load
* models that are half written, damaged or not what they say
* models in S3
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tests.trainer.conftest import until
from tests.trainer.served_models import (
    CLASSES,
    SIZE,
    Client,
    file_of,
    graph_of,
    logits_of,
    pixels,
    served,
    write_model,
)

from dtj_trainer.artifacts.model_manifest import ModelFile, ModelManifest, manifest_of
from dtj_trainer.artifacts.store import Store
from dtj_trainer.serving import places
from dtj_trainer.serving.description import Description
from dtj_trainer.serving.errors import ModelDamaged, ModelMissing, StoreUnavailable
from dtj_trainer.serving.loaded_model import load, refuse_external_data
from dtj_trainer.serving.places import MAX_MANIFEST_BYTES, FolderPlace, find, read_manifest
from dtj_trainer.serving.serve import read_options

SWAPS, CLIENTS = 20, 6


def steps(client: Client) -> int:
    """Of the version that answers: `write_model` writes its seed as the steps."""
    found: int = client("GET", "/models/m").json[0]["steps"]
    return found


def test_a_swap_under_load_loses_no_request_and_mixes_no_versions(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", 0)
    picture = pixels(7)
    wanted = [logits_of(picture[None], seed)[0] for seed in range(SWAPS + 1)]
    request = {
        "inputs": [
            {
                "name": "pixels",
                "shape": [1, 1, SIZE, SIZE],
                "datatype": "UINT8",
                "data": picture.ravel().tolist(),
            }
        ]
    }
    done = threading.Event()

    def ask(client: Client) -> tuple[int, set[int]]:
        """Ask until the end; the number of answers, and the versions that gave them."""
        count, seen = 0, set[int]()
        while not done.is_set():
            answer = client.infer("m", request)
            assert answer.status == 200, answer.body
            found = np.array(answer.json["outputs"][0]["data"])
            seen.add(
                next(seed for seed, logits in enumerate(wanted) if np.allclose(found, logits, atol=1e-4))
            )
            count += 1
        return count, seen

    with served(f"m={folder}", "--poll=0.02") as client, ThreadPoolExecutor(CLIENTS) as pool:
        try:
            asking = [pool.submit(ask, client) for _ in range(CLIENTS)]
            for seed in range(1, SWAPS + 1):
                write_model(folder, seed)
                until(lambda seed=seed: steps(client) == seed, f"version {seed} answers")  # type: ignore[misc]
        finally:
            done.set()
        answers = [each.result() for each in asking]
        assert sum(count for count, _ in answers) > SWAPS
        assert len(set.union(*(seen for _, seen in answers))) > 1
        assert f'dtj_serve_model_swaps_total{{model="m"}} {float(SWAPS)}' in client.metrics


def failures(client: Client) -> float:
    """The versions that could not be loaded."""
    _, _, after = client.metrics.partition('dtj_serve_load_failures_total{model="m"} ')
    return float(after.split()[0]) if after else 0


def test_a_half_written_model_is_never_loaded(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", 1)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    after = {path.name: path.read_bytes() for path in write_model(tmp_path / "new", 2).iterdir()}
    with served(f"m={folder}", "--poll=0.02") as client:
        version = client("GET", "/v2/models/m").json["versions"]
        # The manifest too early, without its files or with a part of them; or one that is damaged.
        for name, content in (
            ("manifest.json", after["manifest.json"]),
            ("model.json", after["model.json"]),
            ("model.onnx", after["model.onnx"][:-1]),
            ("manifest.json", b"{"),
            ("manifest.json", b'{"version": 2, "files": []}'),
        ):
            before_it = failures(client)
            (folder / name).write_bytes(content)
            until(lambda before_it=before_it: failures(client) > before_it, "the server has looked")  # type: ignore[misc]
            assert client("GET", "/v2/models/m").json["versions"] == version
            assert client("PUT", "/predictions/m", file_of(pixels(0))).status == 200
        for name in ("model.onnx", "manifest.json"):
            (folder / name).write_bytes(after[name])
        until(lambda: steps(client) == 2, "the whole model answers")
        for name, content in before.items():
            (folder / name).write_bytes(content)
        until(lambda: steps(client) == 1, "an older one does, too")


def test_a_model_of_another_form_takes_its_own_requests(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", 1)
    with served(f"m={folder}", "--poll=0.02") as client:
        grey = {"name": "pixels", "shape": [1, 1, SIZE, SIZE], "datatype": "UINT8", "data": [0] * SIZE * SIZE}
        assert client.infer("m", {"inputs": [grey]}).status == 200
        write_model(folder, 2, channels=3)
        until(lambda: steps(client) == 2, "the new model answers")
        assert client.infer("m", {"inputs": [grey]}).status == 400
        assert client("PUT", "/predictions/m", file_of(pixels(0, 3))).status == 200


def test_a_pinned_server_does_not_look_for_newer_versions() -> None:
    assert read_options(["m=x"]).poll == 30
    assert read_options(["m=x", "--pin"]).poll is None


def edited(change: Callable[[onnx.ModelProto], object], dtype: int = TensorProto.UINT8) -> bytes:
    graph = graph_of(0, dtype=dtype)
    change(graph)
    return graph.SerializeToString()


def outside(graph: onnx.ModelProto) -> None:
    constant = graph.graph.initializer[0]
    constant.ClearField("raw_data")
    constant.data_location = TensorProto.EXTERNAL
    constant.external_data.add(key="location", value="/etc/passwd")


def outside_in_a_branch(graph: onnx.ModelProto) -> None:
    branch = onnx.GraphProto(name="branch")
    branch.initializer.add(name="x", data_type=TensorProto.FLOAT, dims=[1]).external_data.add(
        key="location", value="x"
    )
    graph.graph.node.add(op_type="If").attribute.add(
        name="then_branch", g=branch, type=onnx.AttributeProto.GRAPH
    )


def fixed_batch(graph: onnx.ModelProto) -> None:
    graph.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    graph.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1


WRONG: dict[str, tuple[bytes | None, dict[str, object], str]] = {
    "tensors in other files": (edited(outside), {}, "tensors in other files"),
    "tensors in other files, in a branch": (edited(outside_in_a_branch), {}, "tensors in other files"),
    "a pickle": (b"\x80\x04\x95", {}, "no ONNX file"),
    "a cut file": (graph_of(0).SerializeToString()[:-100], {}, "no ONNX file"),
    "an empty graph": (onnx.ModelProto().SerializeToString(), {}, "onnxruntime can't run the model"),
    "an unknown operator": (
        edited(lambda graph: setattr(graph.graph.node[3], "op_type", "Shell")),
        {},
        "onnxruntime can't run the model",
    ),
    "a fixed batch": (edited(fixed_batch), {}, "has a fixed batch"),
    "too few labels": (None, {"labels": ["a"]}, "1 labels, but the model has 10 classes"),
    "labels twice": (None, {"labels": ["a"] * CLASSES}, "'a' is the label of two classes"),
    "another size": (
        None,
        {"preprocessing": {"size": [9, 9], "channels": 1, "layout": "NCHW"}},
        "describes pictures of shape (1, 9, 9)",
    ),
    "no preprocessing": (None, {"preprocessing": {"size": 9}}, "model.json can't be read"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_model_that_is_not_as_it_has_to_be_is_refused(tmp_path: Path, name: str) -> None:
    graph, facts, said = WRONG[name]
    folder = write_model(tmp_path, graph=graph, **facts)
    with pytest.raises(ModelDamaged, match=re.escape(said)):
        load(FolderPlace(folder), 1)


def test_threads_of_a_session_spin_for_a_moment_and_within_a_run(tmp_path: Path) -> None:
    """By onnxruntime's default, they take processors for milliseconds after each run."""
    options = load(FolderPlace(write_model(tmp_path, 1)), 2).session.get_session_options()
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    assert int(options.get_session_config_entry("session.intra_op.spin_duration_us")) <= 100


def test_nothing_is_sent_to_the_vendor_of_onnxruntime(tmp_path: Path) -> None:
    """Its telemetry would begin with an identifier in the home folder."""
    folder, home = write_model(tmp_path / "m"), tmp_path / "home"
    home.mkdir()
    program = """
import sys
from pathlib import Path
from dtj_trainer.serving.loaded_model import load
from dtj_trainer.serving.places import FolderPlace
load(FolderPlace(Path(sys.argv[1])), 1)
"""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        environment.pop(name, None)
    subprocess.run(
        [sys.executable, "-c", program, folder], env={**environment, "HOME": str(home)}, check=True
    )
    assert [*home.rglob("*")] == []


def test_tensors_of_their_own_file_are_accepted() -> None:
    refuse_external_data(graph_of(0).SerializeToString())


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../model.onnx", "a/../../b", "", ".", "a//b"], ids=lambda path: path or "empty"
)
def test_a_manifest_names_files_of_its_own_folder(path: str) -> None:
    content = {"version": 1, "files": [{"path": path, "size": 0, "sha256": "0" * 64}]}
    with pytest.raises(ModelDamaged, match="inside the model's folder"):
        read_manifest(json.dumps(content).encode())


def test_a_manifest_is_read_back() -> None:
    manifest = ModelManifest((ModelFile("a", 1, "0" * 64), ModelFile("b/c", 2, "f" * 64)))
    assert read_manifest(manifest.to_json()) == manifest
    with pytest.raises(ModelDamaged, match=r"names no model\.onnx"):
        places.file_of(manifest, "model.onnx")
    with pytest.raises(ModelDamaged, match="twice"):
        read_manifest(ModelManifest((manifest.files[0],) * 2).to_json())


def test_a_manifest_leaves_out_itself_and_temporary_files(tmp_path: Path) -> None:
    for name in ("model.onnx", "manifest.json", ".model.tmp.onnx", "x.part", "saved/variables/v"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert [file.path for file in manifest_of(tmp_path).files] == [
        "model.onnx",
        "saved/variables/v",
    ]


def test_places_without_a_model_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for uri, said in (
        (str(tmp_path), "`dtj export "),
        (str(tmp_path / "nothing"), "is not a folder"),
        ("http://example.com/model", "s3://bucket/prefix"),
        ("s3://", "s3://"),
    ):
        with pytest.raises(ModelMissing) as missing:
            find(uri)
        assert said in str(missing.value)
    for name, value in {
        "ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "ACCESS_KEY_ID": "a",
        "SECRET_ACCESS_KEY": "b",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9"):
        find("s3://bucket/job")


def test_a_description_has_what_is_known() -> None:
    assert Description.from_json(b"{}") == Description(None, None)
    for content in (b"[]", b'{"labels": "abc"}', b'{"output": 1}', b"\xff", b"[" * 100_000):
        with pytest.raises(ModelDamaged, match=r"model\.json can't be read"):
            Description.from_json(content)


def test_a_model_in_s3_is_served_and_swapped(job_store: Store, job_uri: str, tmp_path: Path) -> None:
    def upload(seed: int) -> None:
        folder = write_model(tmp_path / str(seed), seed)
        for name in ("model.onnx", "model.json", "manifest.json"):
            job_store.below("model").put_file(name, folder / name)

    upload(1)
    with served(f"m={job_uri}", "--poll=0.05") as client:
        assert client("GET", "/models").json["models"] == [{"modelName": "m", "modelUrl": f"{job_uri}/model"}]
        assert steps(client) == 1
        upload(2)
        until(lambda: steps(client) == 2, "the new model answers")
        job_store.below("model").put_bytes("manifest.json", b" " * (MAX_MANIFEST_BYTES + 1))
        until(lambda: 'dtj_serve_load_failures_total{model="m"}' in client.metrics, "the server has looked")
        assert client("PUT", "/predictions/m", file_of(pixels(0))).status == 200
