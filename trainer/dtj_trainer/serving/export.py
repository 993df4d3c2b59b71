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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtj_trainer import contract
from dtj_trainer.artifacts.key_names import path_of
from dtj_trainer.artifacts.store import Store, usable_name
from dtj_trainer.contract import MANIFEST_FILE as MANIFEST
from dtj_trainer.contract import MODEL_DESCRIPTION_FILE as DESCRIPTION
from dtj_trainer.contract import MODEL_ONNX_FILE as ONNX
from dtj_trainer.contract.export_options import ABOUT_PLACE, OPTIONS, PLACE
from dtj_trainer.contract.program_options import add_options
from dtj_trainer.serving import forms
from dtj_trainer.serving.description import Description
from dtj_trainer.serving.errors import ModelMissing, exit_on_error
from dtj_trainer.serving.facts import Given, described, read_given
from dtj_trainer.serving.parity import Comparison, classes_of, compare
from dtj_trainer.serving.places import local_folder, model_store, sentences
from dtj_trainer.train.model_files import write_manifest
from dtj_trainer.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    # A hidden name: uploaders and manifests leave it out.
    made = folder / f".{ONNX}.tmp"
    try:
        model.write_onnx(made)
        # Import here: onnx takes time, and an error of the model is told without it.
        from dtj_trainer.serving import onnx_graph

        opset = onnx_graph.finish(made, values.output_name)
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
        # ONNX and manifest are of an earlier export.
        if not is_model_file(path := path_of(item.key)) or path in (ONNX, MANIFEST):
            continue
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        store.get_file(item.key, folder / path)
        found = True
    if not found:
        raise ModelMissing(f"{store.location.uri} has no files: does the job have a model already?")


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


if __name__ == "__main__":
    sys.exit(main())
