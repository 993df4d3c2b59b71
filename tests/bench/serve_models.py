"""The models of `make bench-serve`, and the pictures that its clients send.

`python -m tests.bench.serve_models FOLDER` writes the models. Weights are of chance: they do not change the time.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
CLASSES = 10
CHANNELS = {28: 1, 32: 3, 224: 3}
"""Of pictures of a side: those of Fashion-MNIST, of CIFAR-10 and of ImageNet."""
PICTURES = 64
"""Different pictures in turn, so that no cache of a processor or a library answers."""


class Model(NamedTuple):
    """A network for pictures with a side of so many pixels."""

    network: str
    side: int

    @property
    def name(self) -> str:
        """In URLs and in figures."""
        return f"{self.network}-{self.side}"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return CHANNELS[self.side], self.side, self.side


MODELS = tuple(Model(*each) for each in (("resnet18", 28), ("resnet18", 32), ("resnet18", 224), ("cnn", 28)))


def pixels(model: Model) -> np.ndarray:
    """Pictures of chance, smooth as photographs are: noise compresses as no picture does."""
    chance = np.random.default_rng(0)
    channels, side, _ = model.shape
    rough = chance.integers(0, 256, (PICTURES, 7, 7, channels), np.uint8)
    found = []
    for one in rough:
        bands = [Image.fromarray(one[:, :, band]).resize((side, side)) for band in range(channels)]
        found.append(np.stack([np.asarray(band) for band in bands]))
    return np.stack(found)


def files(found: np.ndarray) -> list[bytes]:
    """The same pictures as files: PNG, and JPEG from 224 on."""
    written = []
    for one in found:
        content = io.BytesIO()
        rows = np.ascontiguousarray(one.transpose(1, 2, 0))
        picture = Image.fromarray(rows[:, :, 0] if rows.shape[2] == 1 else rows)
        picture.save(content, "PNG" if len(rows) < 224 else "JPEG")
        written.append(content.getvalue())
    return written


def json_bodies(found: np.ndarray) -> list[bytes]:
    """Requests of the Open Inference Protocol in JSON."""
    return [
        json.dumps(
            {
                "inputs": [
                    {
                        "name": "pixels",
                        "shape": [1, *one.shape],
                        "datatype": "UINT8",
                        "data": one.ravel().tolist(),
                    }
                ]
            }
        ).encode()
        for one in found
    ]


def binary_bodies(found: np.ndarray) -> tuple[int, list[bytes]]:
    """Requests of the protocol's binary form, and the length of their JSON object."""
    shape, size = [1, *found.shape[1:]], found[0].nbytes
    sizes = {"binary_data_size": size}
    head = json.dumps(
        {
            "inputs": [{"name": "pixels", "shape": shape, "datatype": "UINT8", "parameters": sizes}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    return len(head), [head + one.tobytes() for one in found]


def write_models(folder: Path) -> None:
    """Write each model as a training leaves it, and export it. Raises RuntimeError."""
    from dtj_trainer.serving import export
    from dtj_trainer.torch import saved_model
    from dtj_trainer.torch.models import build

    for model in MODELS:
        network = build(model.network, model.shape, CLASSES)
        saved_model.write(
            folder / model.name,
            network.state_dict(),
            name=model.network,
            shape=model.shape,
            classes=CLASSES,
            facts={},
        )
        if export.main([str(folder / model.name)]):
            raise RuntimeError(f"{model.name} can't be exported")


def make_models(folder: Path) -> None:
    """Run a process that writes the models: PyTorch's threads are not those of the measurements."""
    subprocess.run([sys.executable, "-m", "tests.bench.serve_models", str(folder)], cwd=ROOT, check=True)


if __name__ == "__main__":
    write_models(Path(sys.argv[1]))
