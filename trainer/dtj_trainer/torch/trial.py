"""Tries a user's network before the training: what would fail in its last step, or after it, fails at once.

The networks of `dtj_trainer.torch.models` are not tried: their tests do it.
"""

from __future__ import annotations

import copy
import io
import logging
import math
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from dtj_trainer.torch.models.outputs import logits_and_loss
from dtj_trainer.train.export_process import begin_trial
from dtj_trainer.train.smallest_pass import refused, same_generators, step_totals, tell_unused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from torch import nn

    from dtj_trainer.torch.models import PictureClassifier
    from dtj_trainer.train.options import TrainingOptions

log = logging.getLogger(__name__)


def smallest_passes(examples: int, options: TrainingOptions, shares: int) -> set[int]:
    """Return the sizes of the smallest pass of this run, and of the smallest that has an example."""
    found = set()
    for total in step_totals(examples, options, shares):
        passes = math.ceil(math.ceil(total / shares) / options.batch_size)
        found.add(total // shares // passes)
    return {min(found), max(min(found), 1)}


def try_passes(
    network: PictureClassifier,
    sizes: set[int],
    shape: tuple[int, int, int],
    classes: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]],
) -> None:
    """Make passes of these sizes, with a loss and a backward pass, on a copy of the network.

    Ends the process if a pass fails, with the layer and the remedy. Weights, buffers and generators stay.
    """
    try:
        tried = copy.deepcopy(network).to(device)
    except Exception:
        log.info("the network can't be copied, and is not tried before the training", exc_info=True)
        return
    tried.train()
    with _same_generators(device), _entered(tried) as entered:
        for size in sorted(sizes, reverse=True):
            entered.clear()
            pixels = torch.randint(0, 256, (size, *shape), dtype=torch.uint8, device=device)
            try:
                _pass(tried, pixels, classes, autocast)
            except Exception as error:
                raise SystemExit(refused(size, _layer(entered), error)) from error
            if size:
                _tell_unused(tried)
    _check_extra(tried)


class PassRefused(Exception):
    """A rank of a divided network can't make its part of the smallest step. The message is for the user."""


def try_step(network: nn.Module, make: Callable[[], None], size: int, device: torch.device) -> None:
    """Make the passes of a step by `make`, with `size` pictures of this rank, on this rank's part of a network.

    A copy of a network that needs several ranks might have no room. Buffers and generators are as before at the end;
    what a network counts in Python is not. Raises PassRefused if a pass fails: other ranks may wait for this one, so
    that the process must not leave them as after a SystemExit.
    """
    kept = [
        (module, name, value, value.clone())
        for module in network.modules()
        for name, value in module.named_buffers(recurse=False)
    ]
    network.train()
    with _same_generators(device), _entered(network) as entered:
        try:
            make()
        except Exception as error:
            raise PassRefused(refused(size, _layer(entered), error)) from error
    if size:
        _tell_unused(network)
    with torch.no_grad():
        for module, name, value, before in kept:
            setattr(module, name, value.copy_(before))


@contextmanager
def _same_generators(device: torch.device) -> Iterator[None]:
    with same_generators(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


@contextmanager
def _entered(network: nn.Module) -> Iterator[list[str]]:
    """Yield a list of the modules that a pass is in, outermost first: the last is where an error arose."""
    entered: list[str] = []
    hooks = []
    for name, module in network.named_modules():
        hooks.append(module.register_forward_pre_hook(partial(_enter, entered, name)))
        hooks.append(module.register_forward_hook(partial(_leave, entered)))
    yield entered
    for hook in hooks:
        hook.remove()


def _layer(entered: list[str]) -> str:
    return entered[-1].removeprefix("network.") if entered else "the backward pass"


def _pass(
    network: nn.Module, pixels: Tensor, classes: int, autocast: Callable[[], AbstractContextManager[object]]
) -> None:
    with autocast():
        logits, own = logits_and_loss(network(pixels))
    if logits.shape != (len(pixels), classes):
        raise ValueError(
            f"the network returned logits of shape {tuple(logits.shape)} for {len(pixels)} pictures of {classes} "
            "classes"
        )
    labels = torch.zeros(len(pixels), dtype=torch.int64, device=pixels.device)
    loss = functional.cross_entropy(logits.float(), labels, reduction="sum")
    torch.autograd.backward(loss if own is None else loss + own.float() * len(pixels))


def _enter(entered: list[str], name: str, *_: object) -> None:
    entered.append(name)


def _leave(entered: list[str], *_: object) -> None:
    entered.pop()


def _tell_unused(network: nn.Module) -> None:
    unused = [
        name.removeprefix("network.")
        for name, weight in network.named_parameters()
        if weight.requires_grad and weight.grad is None
    ]
    tell_unused(unused)


def _check_extra(network: nn.Module) -> None:
    """End the process if torch.load would not read the network's extra state from a checkpoint."""
    extra = {name: value for name, value in network.state_dict().items() if not isinstance(value, Tensor)}
    written = io.BytesIO()
    try:
        torch.save(extra, written)
        written.seek(0)
        torch.load(written, weights_only=True)
    except Exception as error:
        raise SystemExit(
            f"get_extra_state of the network ({', '.join(extra)}) has to return what torch.load(weights_only=True) "
            f"reads, such as tensors, numbers, texts, lists or dicts: {type(error).__name__}: {str(error)[:300]}"
        ) from error


def try_export(network: nn.Module, name: str, shape: tuple[int, int, int], classes: int) -> None:
    """Try torch.export in a process of its own, which records in the log and the progress if it fails."""
    size = sum(each.nbytes for each in network.state_dict().values() if isinstance(each, Tensor))
    program = [sys.executable, "-m", "dtj_trainer.torch.export_trial", name]
    begin_trial([*program, *map(str, (*shape, classes))], size)
