"""`dtj export`: models of PyTorch, Keras and TensorFlow as ONNX, with the same answers.

* a trained model of the built-in programs, from its folder to the answers of the server
* Keras and SavedModels
* what is not exported
* what is written into model.json
* models in S3
* the commands and options of docs/export.md and docs/serving.md
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import warm
from tests.patience import PATIENCE
from tests.trainer import served_models
from tests.trainer.local_runs import write_run
from tests.trainer.served_models import file_of, served
from tests.trainer.serving_processes import dtj, serving
from tests.trainer.test_embedded_store import server, wait_for_end
from torch.nn import functional

from dtj.local.object_store import open_store
from dtj_trainer.artifacts.store import Store
from dtj_trainer.data.formats.images import PictureForm, pixels_of
from dtj_trainer.serving import export, serve
from dtj_trainer.serving.errors import ModelMissing, NotExportable
from dtj_trainer.serving.export import Comparison, Given, compare, described, read_given
from dtj_trainer.serving.forms import Input, source_of
from dtj_trainer.serving.loaded_model import load
from dtj_trainer.serving.places import FolderPlace
from dtj_trainer.torch import saved_model
from dtj_trainer.torch.models import build

pytestmark = pytest.mark.torch
DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "export.md").read_text() + (DOCS / "serving.md").read_text()
SHAPE, CLASSES, TEST = (1, 28, 28), 10, 100
LABELS = ",".join(f"class {number}" for number in range(CLASSES))


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy pictures, each of the pattern of its class; uint8."""
    patterns = np.random.default_rng(0).integers(0, 256, (CLASSES, *SHAPE))
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, CLASSES, count)
    return ((patterns[labels] + chance.integers(0, 256, (count, *SHAPE))) // 2).astype(np.uint8), labels


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job's folder with a trained model, as the built-in programs write it."""
    torch.manual_seed(0)
    network = build("cnn", SHAPE, CLASSES, [0.5], [0.2])
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    for step in range(20):
        values, labels = pictures(32, step)
        optimizer.zero_grad()
        functional.cross_entropy(network(torch.from_numpy(values)), torch.from_numpy(labels)).backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("jobs") / "vgg"
    saved_model.write(
        folder / "model",
        network.state_dict(),
        name="cnn",
        shape=SHAPE,
        classes=CLASSES,
        facts={"steps": 20, "accuracy": 0.9},
    )
    return folder


@pytest.fixture(scope="module")
def exported(job: Path) -> Path:
    """The same after the command of the page."""
    (job.parent / "labels.txt").write_text("\n".join(LABELS.split(",")))
    (words,) = re.findall(r"^\$ dtj (export .*)$", PAGE, re.MULTILINE)
    done = dtj(job.parent, *shlex.split(words))
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("vgg/model/model.onnx: ")
    assert "from model.pt2; outputs differ by at most" in line
    return job


def logits_of(job: Path, values: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return np.asarray(saved_model.load(job / "model")(torch.from_numpy(values)))


def test_answers_are_those_of_the_trained_model(exported: Path) -> None:
    model = load(FolderPlace(exported / "model"), 1)
    values, labels = pictures(TEST, 1000)
    wanted = logits_of(exported, values)
    assert (wanted.argmax(1) == labels).mean() > 0.8
    for batch in (1, 2, 7, 32):
        parts = [values[first : first + batch] for first in range(0, TEST, batch)]
        found = np.concatenate([model.run({"pixels": part})[0] for part in parts])
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        best = np.sort(wanted, 1)
        clear = best[:, -1] - best[:, -2] > 1e-3
        assert np.array_equal(found.argmax(1)[clear], wanted.argmax(1)[clear])


def test_pictures_get_the_probabilities_of_the_trained_model(exported: Path) -> None:
    values, _ = pictures(5, 2000)
    files = [file_of(value) for value in values]
    files.append(file_of(np.random.default_rng(1).integers(0, 256, (3, 90, 120)).astype(np.uint8), "JPEG"))
    in_training = np.stack([pixels_of(file, PictureForm(28, 1), where="") for file in files])
    wanted = functional.softmax(torch.from_numpy(logits_of(exported, in_training)), 1).numpy()
    with served(f"m={exported}") as client:
        for file, probabilities in zip(files, wanted, strict=True):
            answer = client("PUT", "/predictions/m?labels=true", file).json
            best = np.argsort(-probabilities)[:5]
            assert [*answer.values()] == pytest.approx(probabilities[best].tolist(), rel=1e-3, abs=1e-5)
            assert next(iter(answer)) == f"class {best[0]}"


def test_the_description_and_the_manifest_are_complete(exported: Path) -> None:
    folder = exported / "model"
    description = json.loads((folder / "model.json").read_bytes())
    assert description["preprocessing"] == {
        "size": [28, 28],
        "channels": 1,
        "layout": "NCHW",
        "range": [0, 255],
        "mean": None,
        "deviation": None,
        "invert": False,
        "orient": False,
    }
    assert description["labels"] == LABELS.split(",")
    assert (description["steps"], description["accuracy"], description["model"]) == (20, 0.9, "cnn")
    assert description["output"] == {"shape": ["batch", CLASSES], "meaning": "logits"}
    assert description["onnx"]["largestDifference"] < 1e-4
    named = [file["path"] for file in json.loads((folder / "manifest.json").read_bytes())["files"]]
    assert named == ["model.json", "model.onnx", "model.pt", "model.pt2"]
    model = load(FolderPlace(folder), 1)
    assert (model.inputs[0].name, model.outputs[0].name) == ("pixels", "logits")
    axes = [node.shape[0] for node in (*model.session.get_inputs(), *model.session.get_outputs())]
    assert axes == ["batch", "batch"]


def test_the_commands_of_the_page_run(exported: Path) -> None:
    folder = exported.parent
    (folder / "kitten.jpg").write_bytes(file_of(pictures(1, 0)[0][0], "JPEG"))
    values = pictures(1, 0)[0]
    one = {"name": "pixels", "shape": [1, *SHAPE], "datatype": "UINT8", "data": values.ravel().tolist()}
    (folder / "request.json").write_text(json.dumps({"inputs": [one]}))
    page = PAGE.partition("\n## In a cluster\n")[0]
    (words,) = re.findall(r"^\$ dtj serve (.*)$", page, re.MULTILINE)
    commands = re.findall(r"^\$ (curl .*)\n(.*)$", page, re.MULTILINE)
    assert len(commands) == 6
    with serving(folder, *shlex.split(words)) as (_, client):
        for command, shown in commands:
            asked = shlex.split(command.replace("127.0.0.1:8080", f"127.0.0.1:{client.port}"))
            done = subprocess.run(
                ["curl", "--silent", "--fail", *asked[1:]], cwd=folder, capture_output=True, check=True
            )
            found = json.loads(done.stdout)
            if "/predictions/" not in command:
                assert found.keys() == json.loads(shown.replace("[…]", "[]")).keys(), command
                continue
            assert len(found) == len(json.loads(shown)) == 5
            assert [*found.values()] == sorted(found.values(), reverse=True)
            assert all(
                name.isdecimal() != ("labels=true" in command) for name in (*found, *json.loads(shown))
            )


def test_the_model_of_a_run_is_exported_where_it_is_and_served(job: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    as_trained = tmp_path / "as-trained"
    as_trained.mkdir()
    for name in ("model.pt2", "model.json"):
        shutil.copy(job / "model" / name, as_trained)
    address = write_run(home, "shirts", as_trained)
    # No AWS variable says where the store is, and the second command takes the address as it was printed.
    with open_store(home, []):
        for place in (("shirts", "--local"), (address,)):
            done = dtj(tmp_path, "export", *place, DTJ_HOME=str(home))
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith(f"{address}/model/model.onnx: "), done.stdout
        with serving(tmp_path, "shirts", "--local", DTJ_HOME=str(home)) as (_, client):
            assert len(client("PUT", "/predictions/shirts", file_of(pictures(1, 0)[0][0])).json) == 5
    wait_for_end(server(home))


def test_the_options_of_the_page_are_those_of_the_server() -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)` \| (\S*) ?\| ", PAGE, re.MULTILINE)
    options = {
        action.option_strings[-1]: action for action in serve.parser()._actions if action.option_strings
    }
    assert [name for name, _ in rows] == [name for name in options if name != "--help"]
    shown = {name: default for name, default in rows if default not in ("", "processors")}
    assert shown == {name: str(options[name].default) for name in shown}


KERAS = """
import sys
from pathlib import Path
import numpy as np
from dtj_trainer.keras import models, saved_model
from dtj_trainer.serving import export
from dtj_trainer.serving.export import Given
import keras

folder = Path(sys.argv[1])
network = models.build("cnn", (28, 28, 1), 10, 1)
saved_model.write(folder / "job/model", network, name="cnn", shape=(28, 28, 1), classes=10, facts={})
layers = [keras.Input((28, 28, 1), name="values"), keras.layers.Flatten(), keras.layers.Dense(10, "softmax")]
softmax = keras.Sequential(layers)
softmax.export(folder / "saved/1", verbose=False)
pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1)).astype("f")
np.savez(folder / "wanted.npz", pixels=pixels, job=network(pixels), saved=softmax(pixels / 255))
for place, given in (("job", Given()), ("saved", Given(range=(0.0, 1.0)))):
    print(export.export(str(folder / place), given).source)
"""


def test_models_of_keras_and_saved_models(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [warm.python("tensorflow"), "-c", KERAS, str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=100 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-2:] == ["model.keras", "1"]
    wanted = np.load(tmp_path / "wanted.npz")
    for place, scale, meaning in (("job/model", 1, "logits"), ("saved", 255, "probabilities")):
        model = load(FolderPlace(tmp_path / place), 1)
        (found,) = model.run({model.inputs[0].name: wanted["pixels"] / np.float32(scale)})
        np.testing.assert_allclose(found, wanted[place.split("/")[0]], rtol=1e-4, atol=1e-4)
        form = model.description.preprocessing
        assert form is not None
        assert (form.layout, form.range, model.description.meaning) == ("NHWC", (0, 255 / scale), meaning)


def test_what_can_not_be_exported_is_told_and_leaves_nothing(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"\*\.pt2 of torch\.export\.save"):
        export.export(str(tmp_path), Given())
    (tmp_path / "a.pt2").write_bytes(b"no program")
    with pytest.raises(NotExportable, match=r"a\.pt2 is no program of torch\.export\.save"):
        export.export(str(tmp_path), Given())
    (tmp_path / "b.keras").write_bytes(b"")
    with pytest.raises(NotExportable, match=r"several models: a\.pt2, b\.keras"):
        export.export(str(tmp_path), Given())
    fixed = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(3, 2),))
    torch.export.save(fixed, tmp_path / "model.pt2")
    with pytest.raises(NotExportable, match="fixed batch of 3"):
        export.export(str(tmp_path), Given())
    shutil.copy(exported / "model/model.pt2", tmp_path)
    with pytest.raises(NotExportable, match="3 labels, but the model has 10 classes"):
        export.export(str(tmp_path), Given(labels=("a", "b", "c")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt2", "b.keras", "model.pt2"]
    assert source_of(tmp_path).name == "model.pt2"


class Scaled:
    """The network of `served_models` in another framework, whose answers are off by a part of the largest."""

    framework = "test"
    inputs = (Input("uint8", (1, 8, 8)),)

    def __init__(self, part: float) -> None:
        self._part = part

    def answer(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        exact = served_models.logits_of(inputs[0])
        return [exact + self._part * np.abs(exact).max(1, keepdims=True)]

    def write_onnx(self, path: Path) -> None:
        raise NotImplementedError


def test_answers_that_differ_are_refused(tmp_path: Path) -> None:
    path = served_models.write_model(tmp_path) / "model.onnx"
    assert compare(Scaled(5e-5), path, None).largest > 1e-5
    with pytest.raises(NotExportable, match="the converted model's outputs differ by up to"):
        compare(Scaled(1e-3), path, None)


GREY = (Input("float32", (1, 28, 28)),)


def test_the_user_says_what_the_model_does_not() -> None:
    given = read_given("a,b", "NCHW", "0,1", "0.5", "0.25", "probabilities", invert=True)
    content = described({}, given, GREY, "torch", 2).with_comparison(
        Comparison(0.0, 42, probabilities=True), source="x.pt2", opset=20, file="model.onnx"
    )
    assert content["preprocessing"] == {
        "size": [28, 28],
        "channels": 1,
        "layout": "NCHW",
        "range": [0, 1],
        "mean": [0.5],
        "deviation": [0.25],
        "invert": True,
        "orient": False,
    }
    assert (content["labels"], content["output"]["meaning"]) == (["a", "b"], "probabilities")
    again = described(content, Given(), GREY, "torch", 2).preprocessing
    assert again is not None
    assert again.to_json() == content["preprocessing"]


@pytest.mark.parametrize(
    ("inputs", "known", "layout"),
    [
        ((Input("uint8", (3, 32, 32)),), {}, "NCHW"),
        ((Input("uint8", (32, 32, 3)),), {}, "NHWC"),
        ((Input("float32", (3, 32, 32)),), {"input": {"range": [0, 255]}}, "NCHW"),
        ((Input("float32", (3, 32, 32)),), {}, None),  # The range is not guessed.
        ((Input("uint8", (3, 3, 3)),), {}, None),
        ((Input("uint8", (3, 32, 64)),), {}, None),
        ((Input("float32", (7,)),), {}, None),
        ((Input("uint8", (3, 32, 32)), Input("uint8", (1,))), {}, None),
    ],
    ids=[
        "channels first",
        "channels last",
        "known range",
        "unknown range",
        "unclear",
        "oblong",
        "row",
        "two inputs",
    ],
)
def test_preprocessing_is_what_is_known_and_not_guessed(
    inputs: tuple[Input, ...], known: dict[str, object], layout: str | None
) -> None:
    found = described(known, Given(), inputs, "torch", None).preprocessing
    assert (found and found.layout) == layout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"limits": "0"}, "--range=0 has to be two numbers"),
        ({"limits": "a,b"}, "--range=a,b has to be numbers"),
        ({"mean": "x"}, "--mean=x has to be numbers"),
        ({"labels": "a,a"}, "--labels: 'a' is the label of two classes"),
        ({"labels": "/nowhere"}, "--labels: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_can_not_be_are_told(words: dict[str, str], said: str) -> None:
    nothing = dict.fromkeys(("labels", "layout", "limits", "mean", "deviation", "meaning"))
    with pytest.raises(NotExportable) as refused:
        read_given(**{**nothing, **words}, invert=False)
    assert said in str(refused.value)
    with pytest.raises(NotExportable, match="the preprocessing is not valid: range"):
        described({}, Given(range=(1.0, 0.0)), GREY, "torch", None)
    with pytest.raises(NotExportable, match="one input of square pictures"):
        described({}, Given(invert=True), (Input("float32", (7,)),), "torch", None)


def test_keys_that_would_leave_the_folder_are_passed_over() -> None:
    keys = [
        "model.pt2",
        "saved/variables/v",
        "/etc/passwd",
        "a//b",
        "../x",
        "a/../../x",
        "a/",
        "",
        ".x",
        "a.tmp",
    ]
    assert [key for key in keys if export.is_model_file(key)] == ["model.pt2", "saved/variables/v"]


class Small(torch.nn.Module):
    """Two classes of pictures of 4 x 4."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 2)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(pixels.float().flatten(1)).softmax(1)
        return found


def test_a_model_of_another_program_in_s3_is_exported_in_place(
    job_store: Store, job_uri: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelMissing, match="has no files"):
        export.export(job_uri, Given())
    dynamic = ({0: torch.export.Dim("n", min=1)},)
    example = torch.zeros((2, 1, 4, 4), dtype=torch.uint8)
    torch.export.save(torch.export.export(Small(), (example,), dynamic_shapes=dynamic), tmp_path / "mine.pt2")
    job_store.put_file("model/mine.pt2", tmp_path / "mine.pt2")
    done = export.export(job_uri, Given(labels=("cat", "dog")))
    assert (done.where, done.source) == (f"{job_uri}/model", "mine.pt2")
    stored = {item.key for item in job_store.objects("model")}
    assert stored == {f"model/{name}" for name in ("manifest.json", "mine.pt2", "model.json", "model.onnx")}
    assert json.loads(job_store.get_bytes("model/model.json"))["output"]["meaning"] == "probabilities"
    with served(f"m={job_uri}") as client:
        answer = client("PUT", "/predictions/m?labels=true", file_of(pictures(1, 0)[0][0])).json
        assert answer.keys() == {"cat", "dog"}
        assert sum(answer.values()) == pytest.approx(1)
