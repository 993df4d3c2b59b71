"""The Horovod programs with a network of any size, to measure the memory for saving and resuming.

    DTJ_ROOT=… LARGE_STATE=torch:200 mpirun -n 2 python -m tests.trainer.large_state OPTIONS OF THE PROGRAM…

for 200 MB of weights and Adam's state. Each rank has a workspace of its own, `DTJ_ROOT-<rank>`. Prints by how many
bytes at most each rank's anonymous and shared memory rose while it resumed and while it saved, and to how many.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtj_trainer.train import file_saver
from dtj_trainer.train.file_saver import FileSaver

UNITS = 256


def memory_now() -> int:
    """Bytes of this process that no file stands behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))


class Peak:
    """The most memory of this process in a block, above that at its beginning."""

    def __enter__(self) -> Peak:
        self._before = self._most = memory_now()
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._watch.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.002):
            self._most = max(self._most, memory_now())

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()
        self.most = max(self._most, memory_now())
        self.rise = self.most - self._before


def measured(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*given: Any, **named: Any) -> Any:
        with Peak() as peak:
            result = call(*given, **named)
        # In one piece: the ranks' lines come by one pipe.
        os.write(1, f"{name} rose by {peak.rise} bytes, to {peak.most}\n".encode())
        return result

    return run


def torch_network(features: int, classes: int) -> Any:
    from torch import nn

    network = nn.Sequential(nn.Flatten(), nn.Linear(features, UNITS), nn.Linear(UNITS, _UNITS_TO))
    return nn.Sequential(network, nn.Linear(_UNITS_TO, classes))


_UNITS_TO = 0


def main(framework: str, megabytes: int, options: list[str]) -> None:
    """Run the program."""
    os.environ["DTJ_ROOT"] += f"-{os.environ['OMPI_COMM_WORLD_RANK']}"
    global _UNITS_TO
    _UNITS_TO = megabytes * 10**6 // 3 // 4 // UNITS  # Adam keeps twice the weights besides them
    FileSaver.resume = measured("resume", FileSaver.resume)  # type: ignore[method-assign]
    file_saver.checkpoints.save = measured("save", file_saver.checkpoints.save)
    # The model is not written, only what has to be in memory for a checkpoint.
    FileSaver.export = lambda *_: {}  # type: ignore[method-assign]
    if framework == "torch":
        from dtj_trainer.programs import horovod_image_classification as program
        from dtj_trainer.torch import model as torch_model
        from dtj_trainer.torch.models import PictureClassifier

        def build(_name: str, shape: tuple[int, int, int], classes: int, *_: object) -> PictureClassifier:
            features = shape[0] * shape[1] * shape[2]
            return PictureClassifier(torch_network(features, classes), [0.0], [1.0])

        torch_model.build = build
    else:
        import keras

        from dtj_trainer.keras import models
        from dtj_trainer.programs import horovod_tf_image_classification as program  # type: ignore[no-redef]

        def network(_name: str, shape: tuple[int, int, int], classes: int, _seed: int) -> keras.Model:
            layers = keras.layers
            units = [layers.Dense(UNITS), layers.Dense(_UNITS_TO), layers.Dense(classes)]
            return keras.Sequential([keras.Input(shape), layers.Flatten(), *units])

        models.build = network
    program.main(options)


if __name__ == "__main__":
    kind, _, size = os.environ["LARGE_STATE"].partition(":")
    main(kind, int(size), sys.argv[1:])
