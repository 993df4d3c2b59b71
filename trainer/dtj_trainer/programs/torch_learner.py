"""A picture classifier in PyTorch, whose ranks average their gradients by Horovod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import horovod.torch as hvd
import numpy as np
import torch
import torch._dynamo  # The first optimizer imports it, for two seconds: here all ranks do before they meet.
from torch import Tensor
from torch.nn import functional

from dtj_trainer.models import build
from dtj_trainer.programs import ranks, saved_model
from dtj_trainer.programs.chance import seed_of
from dtj_trainer.programs.precision import Precision

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.data.sharding import Share
    from dtj_trainer.programs.options import Options


_STATE = ("model", "optimizer", "precision")
"""The entries of a checkpoint that are no plain data."""


class TorchLearner:
    """See Learner. Make it after `hvd.init`."""

    state_file = "state.pt"

    def __init__(self, options: Options, data: PictureSet, device: torch.device) -> None:
        self.rank, self.ranks = hvd.rank(), hvd.size()
        self._name, self._shape, self._classes = options.model, data.shape, data.classes
        self._device = device
        self._seed = options.seed
        torch.manual_seed(options.seed)  # The first weights are the same on all ranks.
        mean, deviation = _statistics(data)
        self._model = build(options.model, data.shape, data.classes, mean, deviation).to(device)
        self._optimizer = hvd.DistributedOptimizer(
            _optimizer(options, self._model), named_parameters=self._model.named_parameters(), op=hvd.Average
        )
        self._precision = Precision(device, options.amp)
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, right, examples

    def prepare(self, pixels: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        """See Learner."""
        tensors = torch.from_numpy(pixels), torch.from_numpy(labels)
        return (tensors[0].pin_memory(), tensors[1].pin_memory()) if self._device.type == "cuda" else tensors

    def train(self, data: tuple[Tensor, Tensor], share: Share, rate: float, step: int) -> None:
        """See Learner."""
        self._draw_anew(step)
        self._model.train()
        # What counts for nothing enters no statistics either.
        kept = (
            [] if share.count else [(each, each.clone()) for each in ranks.statistics(self._model).values()]
        )
        pixels, labels = (each.to(self._device, non_blocking=True) for each in data)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with self._precision.autocast():
            logits = self._model(pixels)
        losses = functional.cross_entropy(logits.float(), labels, reduction="none")[: share.count]
        # Averaged over the ranks, this is the mean over the whole step's examples, also where the
        # ranks have not all equally many.
        self._precision.step(losses.sum() * (self.ranks / share.total), self._optimizer)
        with torch.no_grad():
            for each, before in kept:
                each.copy_(before)
            right = (logits[: share.count].argmax(1) == labels[: share.count]).sum()
            self._sums += torch.stack(
                (losses.sum().double(), right.double(), right.new_tensor(share.count).double())
            )

    def _draw_anew(self, step: int) -> None:
        """Seed the generators from which dropout draws; `torch.manual_seed` takes ten times as long."""
        seed = seed_of(self._seed, step, self.rank)
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def take_sums(self) -> list[float]:
        """See Learner."""
        sums: list[float] = self._sums.tolist()
        self._sums.zero_()
        return sums

    def test(self, pixels: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """See Learner."""
        self._model.eval()
        with torch.inference_mode():
            wanted = torch.from_numpy(labels).to(self._device)
            logits = self._model(torch.from_numpy(pixels).to(self._device))
            loss = functional.cross_entropy(logits, wanted, reduction="sum").item()
            return float((logits.argmax(1) == wanted).sum().item()), loss

    def average_statistics(self) -> None:
        """See Learner."""
        ranks.average_statistics(self._model)

    def total(self, values: Sequence[float], name: str) -> list[float]:
        """See Learner."""
        return ranks.total(values, name)

    def barrier(self) -> None:
        """See Learner."""
        hvd.barrier()

    def check_identical(self) -> str:
        """See Learner."""
        return ranks.check_identical(self._model)

    def write_state(self, path: Path, run: dict[str, Any]) -> None:
        """See Learner."""
        state = {
            **run,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "precision": self._precision.state(),
        }
        torch.save(state, path)

    def read_run(self, path: Path) -> dict[str, Any]:
        """See Learner."""
        return {name: value for name, value in _mapped(path).items() if name not in _STATE}

    def load_state(self, path: Path) -> None:
        """See Learner."""
        saved = _mapped(path)
        self._model.load_state_dict(saved["model"])
        optimizer = saved["optimizer"]
        # The optimizer takes tensors as they are: as its own they must not be the file's.
        for of_parameter in optimizer["state"].values():
            for name, value in of_parameter.items():
                if isinstance(value, Tensor):
                    of_parameter[name] = value.clone()
        self._optimizer.load_state_dict(optimizer)
        self._precision.restore(saved["precision"])

    def broadcast(self, value: Any) -> Any:
        """See Learner."""
        return ranks.broadcast(value)

    def share_state(self) -> None:
        """See Learner."""
        ranks.share_state(self._model, self._optimizer)
        self._precision.restore(ranks.broadcast(self._precision.state()))

    def write_model(self, folder: Path, facts: dict[str, object]) -> None:
        """See Learner."""
        saved_model.write(
            folder, self._model, name=self._name, shape=self._shape, classes=self._classes, facts=facts
        )


def _mapped(path: Path) -> dict[str, Any]:
    """A checkpoint whose tensors are read from the file where they are used, and take no memory of their own."""
    state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    return state


def _statistics(data: PictureSet) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel over the training set, on the scale 0 to 1.

    From counts of the 256 values: exact, the same on every rank, and without a copy as floats.
    """
    means, deviations = [], []
    values = np.arange(256) / 255
    for channel in range(data.shape[0]):
        counts = np.zeros(256, dtype=np.int64)
        for chunk in np.array_split(data.train.pixels[:, channel], max(len(data.train) // 4096, 1)):
            counts += np.bincount(chunk.reshape(-1), minlength=256)
        mean = float((counts * values).sum() / counts.sum())
        means.append(mean)
        deviations.append(max(float((counts * (values - mean) ** 2).sum() / counts.sum()) ** 0.5, 1e-3))
    return means, deviations


def _optimizer(options: Options, model: torch.nn.Module) -> torch.optim.Optimizer:
    if options.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=options.lr, weight_decay=options.weight_decay)
    return torch.optim.SGD(
        model.parameters(), lr=options.lr, momentum=options.momentum, weight_decay=options.weight_decay
    )
