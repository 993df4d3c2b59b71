"""Networks as people write them, for `--model=tests.trainer.own_networks:NAME`. Pictures are 8x8, of one channel.

STYLES names those of the matrix of `test_own_networks`: each has to train on every kind of ranks, and to leave its
weights.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

PIXELS = 64


class Linear(nn.Module):
    """The parent of most of them: one layer."""

    def __init__(self, _channels: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(PIXELS, classes)

    def forward(self, pictures: Tensor) -> Any:
        return self.layer(pictures.flatten(1))


class Checked(Linear):
    """Looks at a value: torch.export refuses it."""

    def forward(self, pictures: Tensor) -> Tensor:
        logits = self.layer(pictures.flatten(1))
        if torch.isnan(logits).any():
            raise ValueError("NaN")
        return logits


class Numpy(Linear):
    """Leaves PyTorch: torch.export takes it in its strict mode alone."""

    def forward(self, pictures: Tensor) -> Tensor:
        return self.layer(pictures.flatten(1)) * float(pictures.detach().cpu().numpy().ndim > 0)


class Counter(Linear):
    """Counts in Python: torch.export takes it in its strict mode alone."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        self.seen = 0

    def forward(self, pictures: Tensor) -> Tensor:
        self.seen += len(pictures)
        return self.layer(pictures.flatten(1))


class Patches(nn.Module):
    """A small vision transformer, with `len`: torch.export takes it in its strict mode alone."""

    def __init__(self, _channels: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(16, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        patches = pictures.unfold(2, 4, 4).unfold(3, 4, 4).reshape(len(pictures), 4, 16)
        return self.head(self.layer(self.embedding(patches)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, _channels: int, classes: int) -> None:
        super().__init__()
        self.rows = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.rows(pictures[:, 0])[0][:, -1])


class Depth(Linear):
    """Stochastic depth: some passes leave a layer out."""

    def forward(self, pictures: Tensor) -> Tensor:
        logits = self.layer(pictures.flatten(1))
        return logits * 0 if self.training and torch.rand(()) < 0.5 else logits


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, values: Tensor) -> Tensor:
        return values.clamp(min=0)

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        return gradient


class Autograd(Linear):
    """A gradient of its own."""

    def forward(self, pictures: Tensor) -> Tensor:
        return _Straight.apply(self.layer(pictures.flatten(1)))  # type: ignore[no-any-return, no-untyped-call]


class Named(Linear):
    """Gives its outputs by name."""

    def forward(self, pictures: Tensor) -> dict[str, Tensor]:
        return {"logits": super().forward(pictures), "features": pictures.flatten(1)}


class Pair(Linear):
    """Gives logits and something else."""

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(pictures), pictures


class Output(NamedTuple):
    logits: Tensor
    loss: Tensor | None


class OwnLoss(Linear):
    """Has a loss of its own beside the logits: ten times the squared weights."""

    def forward(self, pictures: Tensor) -> Output:
        return Output(super().forward(pictures), 10 * self.layer.weight.square().sum())


class SeveralInputs(Linear):
    """Takes more than the pictures."""

    def forward(self, pictures: Tensor, mask: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        kept = pictures if mask is None else pictures * mask
        return self.layer(kept.flatten(1)) * scale


class Tied(nn.Module):
    """One weight at two places."""

    def __init__(self, _channels: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(PIXELS, PIXELS), nn.Linear(PIXELS, PIXELS)
        self.second.weight = self.first.weight
        self.head = nn.Linear(PIXELS, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.second(functional.relu(self.first(pictures.flatten(1)))))


class Center(Linear):
    """A moving mean and counters under names of its own, as DINO's center and VQ's codebooks are."""

    center: Tensor
    count: Tensor
    table: Tensor

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        self.register_buffer("center", torch.zeros(PIXELS))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.arange(1, PIXELS + 1) / 7)  # No pass changes it.

    def forward(self, pictures: Tensor) -> Tensor:
        values = pictures.flatten(1)
        if self.training and len(values):
            self.center.lerp_(values.detach().mean(0), 0.1)
            self.count += int(values.detach().abs().sum())
        return self.layer(values - self.center)


class Normed(nn.Module):
    """PyTorch's own BatchNorm of vectors, which refuses a single example."""

    def __init__(self, _channels: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(PIXELS, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes)
        )

    def forward(self, pictures: Tensor) -> Tensor:
        return self.layers(pictures)  # type: ignore[no-any-return]


class Unused(Linear):
    """A head that no pass uses."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        self.head = nn.Linear(PIXELS, classes)


class Picky(Linear):
    """Refuses a single picture in a layer of its own."""

    class Pairs(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            if len(values) < 2:
                raise ValueError("there are no two of them")
            return values

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        self.pairs = self.Pairs()

    def forward(self, pictures: Tensor) -> Tensor:
        return super().forward(self.pairs(pictures))  # type: ignore[no-any-return]


class Wide(Linear):
    """Has more outputs than classes."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes + 1)


class Drawn(Linear):
    """Draws from every generator, and has state that a pass changes."""

    total: Tensor

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        self.norm, self.dropout = nn.BatchNorm1d(PIXELS), nn.Dropout()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, pictures: Tensor) -> Tensor:
        values = self.dropout(self.norm(pictures.flatten(1)))
        if self.training:
            self.total += random.random() + np.random.random() + float(torch.rand(()))
        return self.layer(values)


class Diverging(Linear):
    """Changes a weight by itself, on each rank by another value."""

    def forward(self, pictures: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.layer.bias += pictures.mean()
        return super().forward(pictures)  # type: ignore[no-any-return]


STYLES = {
    "checked": Checked,
    "numpy": Numpy,
    "counter": Counter,
    "patches": Patches,
    "recurrent": Recurrent,
    "depth": Depth,
    "autograd": Autograd,
    "named": Named,
    "pair": Pair,
    "several_inputs": SeveralInputs,
    "tied": Tied,
    "center": Center,
}
UNEXPORTABLE = ("checked",)
"""The styles that even the strict mode of torch.export refuses."""
OTHERS = {
    "own_loss": OwnLoss,
    "normed": Normed,
    "unused": Unused,
    "picky": Picky,
    "wide": Wide,
    "drawn": Drawn,
    "diverging": Diverging,
}


def __getattr__(name: str) -> Any:
    """The factories are STYLES and OTHERS."""
    try:
        kind = (STYLES | OTHERS)[name]
    except KeyError:
        raise AttributeError(name) from None
    return lambda channels, classes: kind(channels, classes)
