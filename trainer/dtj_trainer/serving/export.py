"""Convert a trained model to ONNX, for `dtj serve`.

FOLDER or URI is the folder of a job or its model/: what the built-in programs write (model.pt2, model.keras), or a
*.pt2, *.keras or SavedModel of another program. The model is loaded by its framework, which runs code of the model:
export only models that you trust. The outputs of the ONNX model are compared with those of the framework.
Written are model.onnx, model.json and, last, manifest.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from dtj_trainer import contract
from dtj_trainer.artifacts.store import Store, path_of, usable_name
from dtj_trainer.contract import MANIFEST_FILE as MANIFEST
from dtj_trainer.contract import MODEL_DESCRIPTION_FILE as DESCRIPTION
from dtj_trainer.contract import MODEL_ONNX_FILE as ONNX
from dtj_trainer.contract.export_options import ABOUT_PLACE, OPTIONS, PLACE
from dtj_trainer.contract.program_options import add_options
from dtj_trainer.serving import forms
from dtj_trainer.serving.description import Description, Preprocessing, checked_labels
from dtj_trainer.serving.errors import ModelMissing, NotExportable, exit_on_error, first_line
from dtj_trainer.serving.places import local_folder, model_store, sentences
from dtj_trainer.train.model_files import write_manifest
from dtj_trainer.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dtj_trainer.serving.description import Layout, Meaning
    from dtj_trainer.serving.forms import Input, TrainedModel


# Described makes the content of model.json from three sources: the options of the user (Given), the model.json that
# the training wrote, and the inputs of the loaded model. If several sources have a value, the user's value wins.

_CHANNELS = (1, 3)


@dataclass(frozen=True)
class Given:
    """The user's options about a model. None or empty: the option is not given."""

    labels: tuple[str, ...] = ()
    layout: Layout | None = None
    range: tuple[float, float] | None = None
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    meaning: Meaning | None = None
    invert: bool = False


def read_given(
    labels: str | None,
    layout: str | None,
    limits: str | None,
    mean: str | None,
    deviation: str | None,
    meaning: str | None,
    *,
    invert: bool,
) -> Given:
    """Read the options of the command line. Raises NotExportable, which names the option."""
    try:
        names = checked_labels(_names(labels)) if labels else ()
    except (ValueError, OSError) as error:
        raise NotExportable(f"--labels: {error}") from error
    pair = _numbers("--range", limits)
    if pair and len(pair) != 2:
        raise NotExportable(f"--range={limits} has to be two numbers, as 0,1")
    return Given(
        names,
        cast("Layout | None", layout),
        (pair[0], pair[1]) if pair else None,
        _numbers("--mean", mean),
        _numbers("--deviation", deviation),
        cast("Meaning | None", meaning),
        invert,
    )


def _names(labels: str) -> list[str]:
    if "," in labels:
        return [name.strip() for name in labels.split(",")]
    return [line.strip() for line in Path(labels).read_text().splitlines() if line.strip()]


def _numbers(option: str, text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(",")) if text else ()
    except ValueError as error:
        raise NotExportable(f"{option}={text} has to be numbers, separated by commas") from error


@dataclass(frozen=True)
class Described:
    """What is known before the outputs are computed."""

    known: dict[str, Any]
    preprocessing: Preprocessing | None
    labels: tuple[str, ...]
    meaning: Meaning | None
    range: tuple[float, float] | None
    framework: str
    inputs: tuple[Input, ...]
    classes: int | None

    @property
    def output_name(self) -> str:
        """The name of the model's single output in ONNX."""
        return self.meaning or "output"

    def with_comparison(
        self, comparison: Comparison, *, source: str, opset: int, file: str
    ) -> dict[str, Any]:
        """Return the content of model.json."""
        meaning = self.meaning or ("probabilities" if comparison.probabilities else "logits")
        first = self.inputs[0]
        content = {
            "input": {"dtype": first.dtype, "shape": ["batch", *first.shape]},
            # Leave out `export`, the error of an earlier export.
            **{name: value for name, value in self.known.items() if name != "export"},
            "output": {
                "shape": ["batch", self.classes],
                **self.known.get("output", {}),
                "meaning": meaning,
            },
            "onnx": {
                "file": file,
                "from": source,
                "by": self.framework,
                "opset": opset,
                "largestDifference": comparison.largest,
                "examplesCompared": comparison.examples,
            },
        }
        if self.preprocessing:
            content["preprocessing"] = self.preprocessing.to_json()
        if self.labels:
            content["labels"] = list(self.labels)
        return content


def described(
    known: dict[str, Any], given: Given, inputs: tuple[Input, ...], framework: str, classes: int | None
) -> Described:
    """Put together what model.json, the user and the inputs say; the user goes first. Raises NotExportable."""
    labels = given.labels or tuple(known.get("labels") or ())
    if labels and classes is not None and len(labels) != classes:
        raise NotExportable(f"there are {len(labels)} labels, but the model has {classes} classes")
    meaning = given.meaning or known.get("output", {}).get("meaning")
    preprocessing = _preprocessing(known, given, inputs)
    return Described(
        known,
        preprocessing,
        labels,
        meaning if meaning in ("logits", "probabilities") else None,
        preprocessing.range if preprocessing and not preprocessing.mean else None,
        framework,
        inputs,
        classes,
    )


def _preprocessing(known: dict[str, Any], given: Given, inputs: tuple[Input, ...]) -> Preprocessing | None:
    """Return how pictures become inputs; None if the model takes no square pictures, or the range isn't known."""
    limits = given.range or _known_range(known, inputs[0])
    picture = _picture(inputs, given.layout)
    if picture is None or limits is None:
        if given.mean or given.deviation or given.invert or given.range:
            raise NotExportable(
                "--mean, --deviation and --invert need --range: the range of the model's pixels is not known"
                if picture
                else "--range, --mean, --deviation and --invert are for models with one input of square pictures in "
                f"1 or 3 channels; this model takes {', '.join(map(str, inputs))}"
            )
        return None
    size, channels, layout = picture
    found = Preprocessing(size, channels, layout, limits)
    try:
        if known.get("preprocessing"):
            found = replace(Preprocessing.from_json(known["preprocessing"]), range=limits)
        found = replace(
            found,
            mean=given.mean or found.mean,
            deviation=given.deviation or found.deviation,
            invert=given.invert or found.invert,
        )
        found.check()
    except (ValueError, TypeError, KeyError) as error:
        raise NotExportable(f"the preprocessing is not valid: {error}") from error
    return found


def _known_range(known: dict[str, Any], first: Input) -> tuple[float, float] | None:
    limits = known.get("preprocessing", {}).get("range") or known.get("input", {}).get("range")
    if limits:
        return float(limits[0]), float(limits[1])
    return (0.0, 255.0) if first.dtype == "uint8" else None


def _picture(inputs: tuple[Input, ...], layout: Layout | None) -> tuple[int, int, Layout] | None:
    """Return size, channels and layout of the pictures that the model takes."""
    if len(inputs) != 1 or len(inputs[0].shape) != 3 or inputs[0].dtype not in ("uint8", "float32"):
        return None
    first, second, last = inputs[0].shape
    found: list[tuple[int, int, Layout]] = []
    if layout != "NHWC" and first in _CHANNELS and second == last:
        found.append((last, first, "NCHW"))
    if layout != "NCHW" and last in _CHANNELS and first == second:
        found.append((first, last, "NHWC"))
    return found[0] if len(found) == 1 else None


# `compare` gives the same random inputs to an ONNX model and to the trained model that it was converted from.

BATCHES = (1, 2, 7, 32)
TOLERANCE = 1e-4
"""An output may differ by TOLERANCE, plus TOLERANCE times the largest output of the same example, because rounding
errors grow with the outputs."""
_SEED = 20261125


class Comparison(NamedTuple):
    """`largest`: the largest difference of an output. `probabilities`: the outputs of each example sum up to 1."""

    largest: float
    examples: int
    probabilities: bool


def classes_of(model: TrainedModel) -> int | None:
    """Return the number of classes; None if the first output has not one value for each class."""
    first = model.answer([np.zeros((1, *each.shape), each.dtype) for each in model.inputs])[0]
    return first.shape[1] if first.ndim == 2 else None


def compare(model: TrainedModel, path: Path, limits: tuple[float, float] | None) -> Comparison:
    """Compare outputs for batches of BATCHES examples, drawn from a fixed seed.

    `limits`: of the values of floating-point inputs; None draws from the normal distribution. Raises NotExportable if
    an output differs by more than TOLERANCE.
    """
    try:
        session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common base class.
        raise NotExportable(f"onnxruntime can't load the converted model: {first_line(error)}") from error
    names = [each.name for each in session.get_inputs()]
    chance = np.random.default_rng(_SEED)
    largest, probabilities = 0.0, True
    for batch in BATCHES:
        inputs = [_drawn(each, batch, chance, limits) for each in model.inputs]
        wanted = model.answer(inputs)
        try:
            found = session.run(None, dict(zip(names, inputs, strict=True)))
        except Exception as error:  # onnxruntime's errors have no common base class.
            raise NotExportable(
                f"the converted model does not take a batch of {batch}: {first_line(error)}"
            ) from error
        for one, other in zip(wanted, found, strict=True):
            largest = max(largest, _difference(one, np.asarray(other)))
        probabilities = probabilities and _sums_to_one(wanted)
    return Comparison(largest, sum(BATCHES), probabilities)


def _drawn(
    one: Input, batch: int, chance: np.random.Generator, limits: tuple[float, float] | None
) -> np.ndarray:
    shape, dtype = (batch, *one.shape), np.dtype(one.dtype)
    if dtype.kind == "b":
        return chance.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return chance.integers(0, 256 if dtype == np.uint8 else 2, shape).astype(dtype)
    if limits is None:
        return chance.standard_normal(shape).astype(dtype)
    return chance.uniform(*limits, shape).astype(dtype)


def _difference(wanted: np.ndarray, found: np.ndarray) -> float:
    if wanted.shape != found.shape:
        raise NotExportable(
            f"the converted model has outputs of shape {found.shape}, but the trained model of {wanted.shape}"
        )
    one, other = wanted.astype(np.float64), found.astype(np.float64)
    difference = np.abs(one - other)
    largest = np.abs(one).max(axis=tuple(range(1, one.ndim)), keepdims=True)
    if not (difference <= TOLERANCE + TOLERANCE * largest).all():
        raise NotExportable(
            f"the converted model's outputs differ by up to {difference.max():.2e} from the trained model's; at most "
            f"{TOLERANCE:.0e}, plus {TOLERANCE:.0e} of the largest output, is allowed"
        )
    return float(difference.max(initial=0.0))


def _sums_to_one(outputs: list[np.ndarray]) -> bool:
    first = outputs[0]
    return first.ndim == 2 and bool((first >= 0).all() and np.allclose(first.sum(1), 1, atol=1e-3))


@dataclass(frozen=True)
class Exported:
    """What was exported. `where`: the folder or URI of the model. `source`: the name of what was converted."""

    where: str
    source: str
    comparison: Comparison
    size: int


def export_folder(folder: Path, given: Given) -> Exported:
    """Write model.onnx, model.json and manifest.json into a model's folder.

    Raises ServingError; the folder then has no new file.
    """
    source = forms.source_of(folder)
    known = _known(folder)
    model = forms.load(source)
    values = described(known, given, model.inputs, model.framework, classes_of(model))
    # Write to a hidden name first: uploads and manifests leave hidden files out.
    made = folder / f".{ONNX}.tmp"
    try:
        model.write_onnx(made)
        opset = finish(made, values.output_name)
        comparison = compare(model, made, values.range)
        content = values.with_comparison(comparison, source=source.name, opset=opset, file=ONNX)
        write_whole(folder / ONNX, made.replace)
    finally:
        made.unlink(missing_ok=True)
    text = json.dumps(content, indent=2) + "\n"
    write_whole(folder / DESCRIPTION, lambda path: path.write_text(text))
    write_manifest(folder)
    return Exported(str(folder), source.name, comparison, (folder / ONNX).stat().st_size)


def export(uri: str, given: Given) -> Exported:
    """Export the model at a folder or URI, which may also be that of the job. Raises ServingError."""
    folder = local_folder(uri)
    if folder is not None:
        below = folder / contract.MODEL
        return export_folder(below if below.is_dir() else folder, given)
    with sentences(), tempfile.TemporaryDirectory(prefix="dtj-export-") as copied:
        store = model_store(uri)
        if next(store.objects(contract.MODEL), None):
            store = store.below(contract.MODEL)
        _fetch(store, Path(copied))
        exported = export_folder(Path(copied), given)
        for name in (ONNX, DESCRIPTION, MANIFEST):
            store.put_file(name, Path(copied) / name)
        return Exported(store.location.uri, exported.source, exported.comparison, exported.size)


def _fetch(store: Store, folder: Path) -> None:
    found = False
    for item in store.objects():
        # Skip the ONNX file and the manifest: they are of an earlier export.
        if not is_model_file(path := path_of(item.key)) or path in (ONNX, MANIFEST):
            continue
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        store.get_file(item.key, folder / path)
        found = True
    if not found:
        raise ModelMissing(f"{store.location.uri} has no files: the job may not have written its model yet")


def is_model_file(path: str) -> bool:
    """Return whether a path below a model's prefix is that of a file: one inside the folder, not temporary."""
    return all(part and usable_name(part) for part in path.split("/"))


def _known(folder: Path) -> dict[str, Any]:
    """Return what the training has written into model.json; nothing without that file."""
    try:
        content = (folder / DESCRIPTION).read_bytes()
    except FileNotFoundError:
        return {}
    Description.from_json(content)
    known: dict[str, Any] = json.loads(content)
    return known


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="dtj export", description=__doc__)
    made.add_argument("place", metavar=PLACE, help=ABOUT_PLACE)
    add_options(made, OPTIONS)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Export as the command line says; return the exit code."""
    chosen = parser().parse_args(arguments)
    with exit_on_error():
        given = read_given(
            chosen.labels,
            chosen.layout,
            chosen.range,
            chosen.mean,
            chosen.deviation,
            chosen.output,
            invert=chosen.invert,
        )
        exported = export(chosen.place, given)
    print(
        f"{exported.where}/{ONNX}: {exported.size} bytes from {exported.source}; outputs differ by at most "
        f"{exported.comparison.largest:.1e} on {exported.comparison.examples} random examples"
    )
    return 0


# `finish` renames the batch axis of a converted graph, and its output if there is only one.

BATCH = "batch"


def finish(path: Path, output: str) -> int:
    """Name the first axis of every input and output `batch`, and a single output `output`; return the opset.

    Raises NotExportable if an input has a fixed first axis, or another axis that is not fixed.
    """
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    constants = {constant.name for constant in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    symbols = set()
    for value in inputs:
        axes = value.type.tensor_type.shape.dim
        if not axes or axes[0].HasField("dim_value"):
            raise NotExportable(
                f"the input {value.name} has a fixed batch size: export the model with a dynamic first axis "
                "(dynamic_shapes of torch.export.export, None in Keras)"
            )
        if not all(axis.dim_value for axis in axes[1:]):
            raise NotExportable(
                f"the input {value.name} has an axis without a fixed size besides the batch axis"
            )
        symbols.add(axes[0].dim_param or BATCH)
        axes[0].dim_param = BATCH
    for value in (*graph.output, *graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param in symbols:
                axis.dim_param = BATCH
    for value in graph.output:
        axes = value.type.tensor_type.shape.dim
        if axes and not axes[0].HasField("dim_value"):
            axes[0].dim_param = BATCH
    if len(graph.output) == 1:
        _name_output(model, output)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))


def _name_output(model: onnx.ModelProto, name: str) -> None:
    """Add a node that does nothing but give the output its name."""
    graph = model.graph
    found = graph.output[0].name
    if found == name or name in _names_of_classes(graph):
        return
    graph.node.append(helper.make_node("Identity", [found], [name], name=f"named_{name}"))
    graph.output[0].name = name


def _names_of_classes(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
        yield from node.output


if __name__ == "__main__":
    sys.exit(main())
