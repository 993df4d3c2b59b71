"""A picture classifier in PyTorch, as one of several ranks trains and saves it."""

from __future__ import annotations

import hashlib
import math
from contextlib import nullcontext
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch._dynamo  # Optimizers import it, which takes 2 s: all ranks load it before their first meeting.
from torch import Tensor, nn
from torch.nn import functional

from dtj_trainer.artifacts import checkpoints
from dtj_trainer.torch import buffers, optimizers, saved_model, switches, sync_batchnorm, trial
from dtj_trainer.torch.models import build
from dtj_trainer.torch.models.outputs import logits_and_loss
from dtj_trainer.torch.precision import Precision
from dtj_trainer.torch.profiling import StepProfile
from dtj_trainer.torch.staging import StagedState
from dtj_trainer.torch.state_dicts import tensors_in, with_values, without_values
from dtj_trainer.torch.step_times import NoClock, StepClock
from dtj_trainer.train.chance import seed_of
from dtj_trainer.train.file_saver import FileSaver
from dtj_trainer.train.own_model import is_own
from dtj_trainer.train.protocols import PictureModel, Tested

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.data.sharding import Share
    from dtj_trainer.torch.models import PictureClassifier
    from dtj_trainer.torch.ranks import TensorRanks
    from dtj_trainer.train.options import Options
    from dtj_trainer.train.protocols import StepParts

_STATE = ("model", "optimizer", "precision")
"""The entries of a checkpoint that are not plain data."""
_LEAST_DEVIATION = 1e-3
"""In place of a smaller one, by which the pixels of a channel can't be divided."""


class TorchModel(PictureModel[tuple[Tensor, Tensor]]):
    """See PictureModel."""

    _without_gradients: ClassVar[type[torch.inference_mode | torch.no_grad]] = torch.inference_mode
    """The mode of a test."""
    _may_fuse: ClassVar[bool] = True
    """Whether the weights are plain tensors, as a fused optimizer needs."""

    def __init__(self, options: Options, data: PictureSet, device: torch.device, ranks: TensorRanks) -> None:
        self._ranks = ranks
        self._device = device
        self._seed, self._pass_size = options.seed, options.batch_size
        self._clip_norm, self._smoothing = options.clip_norm, options.label_smoothing
        self._layout = torch.channels_last if options.channels_last else torch.preserve_format
        switches.set_algorithms(options)
        torch.manual_seed(options.seed)  # The first weights are the same on all ranks.
        mean, deviation = _statistics(data)
        self.precision = Precision(device, options.amp, options.amp_dtype)
        whole = build(options.model, data.shape, data.classes, mean, deviation)
        self._describe = options.model, data.shape, data.classes
        if is_own(options.model) and not options.divided and checkpoints.newest() is None:
            sizes = trial.smallest_passes(len(data.train), options, ranks.data_size)
            trial.try_passes(whole, sizes, data.shape, data.classes, device, self.precision.autocast)
        if options.sync_batchnorm and ranks.size > 1:
            sync_batchnorm.synchronize(whole, on_gpu=device.type == "cuda")
        self.network = self._placed(whole, options, data.shape)
        optimizer = optimizers.make(options, self.network, fused=self._may_fuse and device.type == "cuda")
        self._averaging = ranks.averaging(
            self.network, optimizer, options.passes(ranks.data_size), every_weight=not is_own(options.model)
        )
        self.optimizer = self._averaging.optimizer
        if options.compile:
            switches.compile_in_place(self.network)
        self._clock = self._new_clock()
        self._profile = StepProfile(options.profile_steps, ranks)
        self._sums = torch.zeros(4, dtype=torch.float64, device=device)  # loss, right, examples, top 5

    def _placed(self, network: PictureClassifier, options: Options, shape: tuple[int, int, int]) -> nn.Module:
        """Return what this rank trains of the network, on its device. `shape` is that of a picture."""
        del options, shape
        network.to(self._device).to(memory_format=self._layout)  # type: ignore[call-overload]
        return network

    def _new_clock(self) -> NoClock:
        return StepClock(self.network, self._device, exchanged=self._ranks.size > 1)

    def try_export(self) -> None:
        """See PictureModel."""
        if is_own(self._describe[0]):
            trial.try_export(self.network, *self._describe)

    def prepare(self, pixels: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        """See PictureModel."""
        tensors = torch.from_numpy(pixels), torch.from_numpy(labels)
        return (tensors[0].pin_memory(), tensors[1].pin_memory()) if self._device.type == "cuda" else tensors

    def train(self, data: tuple[Tensor, Tensor], share: Share, rate: float, step: int) -> None:
        """See Model."""
        self._profile.before(step)
        self._draw_anew(step)
        self.network.train()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        self._make_passes(data, share)
        with self._averaging.averaged():
            self._clock.averaged()
            self.precision.step(self.optimizer, None if self._clip_norm is None else self._clip)
        self._clock.updated()

    def _clip(self, weights: Sequence[Tensor]) -> None:
        """Reduce the norm of the gradient, which is averaged, to that of `--clip-norm`."""
        assert self._clip_norm is not None
        torch.nn.utils.clip_grad_norm_(weights, self._clip_norm)

    def _make_passes(self, data: tuple[Tensor, Tensor], share: Share) -> None:
        """Add up the gradients of a step in this rank."""
        # Without an example that counts, a pass has an empty batch, which changes no statistics either.
        counted = (
            self._moved(data[0][: share.count]),
            data[1][: share.count].to(self._device, non_blocking=True),
        )
        # All ranks make equally many passes. The first rank has the most examples.
        passes = math.ceil(math.ceil(share.total / self._ranks.data_size) / self._pass_size)
        pixels, labels = (each.tensor_split(passes) for each in counted)
        for each in range(passes):
            with self._averaging.accumulating() if each < passes - 1 else nullcontext():
                self._pass(pixels[each], labels[each], share.total)

    def _moved(self, pixels: Tensor) -> Tensor:
        return pixels.to(self._device, non_blocking=True, memory_format=self._layout)

    def _pass(self, pixels: Tensor, labels: Tensor, total: int) -> None:
        """Add the gradient of these examples. `total`: the examples of the step on all ranks."""
        self._clock.forward()
        with self.precision.autocast():
            logits, own_loss = logits_and_loss(self._averaging.network(pixels))
        losses = functional.cross_entropy(
            logits.float(), labels, reduction="none", label_smoothing=self._smoothing
        )
        self._clock.backward()
        # Averaged over the ranks, this is the mean over all examples of the step, also when ranks have different
        # counts.
        summed = losses.sum()
        if own_loss is not None:
            # The network's own loss is a mean over its examples, or of weights alone: once a step in both cases.
            summed = summed + own_loss.float() * len(labels)
        self.precision.backward(summed * (self._ranks.data_size / total))
        self._clock.passed()
        self._add_up(losses, logits, labels)

    def _add_up(self, losses: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add to the sums. Labels below 0 do not count."""
        with torch.no_grad():
            counted, right = (labels >= 0).sum(), right_answers(logits, labels)
            sums = losses.sum(), right, counted, among_five(logits, labels)
            self._sums += torch.stack([each.double() for each in sums])

    def take_parts(self) -> StepParts:
        """See Model."""
        return self._clock.take()

    def close(self) -> None:
        """Write a profile that is not complete."""
        self._profile.close()

    def _draw_anew(self, step: int) -> None:
        """Seed the generators that dropout uses. `torch.manual_seed` would take ten times as long."""
        seed = seed_of(self._seed, step, self._chance_rank)
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)

    @property
    def _chance_rank(self) -> int:
        """The number that distinguishes this rank's random numbers. Ranks of one share draw the same."""
        return self._ranks.data_rank

    def take_sums(self) -> list[float]:
        """See Model."""
        sums: list[float] = self._sums.tolist()
        self._sums.zero_()
        return sums if self._ranks.counts else [0.0] * len(sums)

    def test(self, pixels: np.ndarray, labels: np.ndarray) -> Tested:
        """See PictureModel."""
        self.network.eval()
        with self._without_gradients():
            wanted = torch.from_numpy(labels).to(self._device)
            logits = self.network(self._moved(torch.from_numpy(pixels)))
            loss = functional.cross_entropy(logits, wanted, reduction="sum").item()
            return Tested(right_answers(logits, wanted).item(), loss, among_five(logits, wanted).item())

    def average_statistics(self) -> None:
        """See Model."""
        with torch.no_grad():
            buffers.make_same(self.network, self._ranks)

    def fingerprints(self, *, weights_alone: bool) -> dict[str, str]:
        """See Model."""
        named = dict(self.network.named_parameters()) if weights_alone else self.network.state_dict()
        return buffers.fingerprints(named)


class TorchSaver(FileSaver):
    """See FileSaver."""

    file = "state.pt"
    _ranks: TensorRanks

    def __init__(self, options: Options, data: PictureSet, model: TorchModel, ranks: TensorRanks) -> None:
        super().__init__(options, data.train.blocks, ranks, data.class_names, data.train.stock)
        self._shape, self._classes, self._class_names = data.shape, data.classes, data.class_names
        self._network, self._optimizer, self._precision = model.network, model.optimizer, model.precision
        self._staged = StagedState()

    def _state(self, run: dict[str, Any]) -> dict[str, Any]:
        return {
            **run,
            "model": self._network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "precision": self._precision.state(),
        }

    def write_state(self, path: Path, run: dict[str, Any]) -> None:
        """See FileSaver."""
        torch.save(self._state(run), path)

    def prepare_saves(self) -> None:
        """See Saver. The first copy gets its memory, and takes several times as long as later ones."""
        if self._ranks.rank == 0 and self._options.async_save:
            self._staged.stage(self._state({}))

    def stage(self, run: dict[str, Any]) -> Callable[[Path], None] | None:
        """See FileSaver."""
        return self._staged.stage(self._state(run))

    def close(self) -> None:
        """See Saver."""
        super().close()
        self._staged.close()

    def read_run(self, path: Path) -> dict[str, Any]:
        """See FileSaver."""
        return {name: value for name, value in _mapped(path).items() if name not in _STATE}

    def load_state(self, path: Path) -> None:
        """See FileSaver."""
        saved = _mapped(path)
        self._network.load_state_dict(saved["model"])
        optimizer = saved["optimizer"]
        # The checkpoint may be of another device, or of a release without fused optimizers.
        for group, own in zip(optimizer["param_groups"], self._optimizer.param_groups, strict=True):
            if "fused" in own:
                group["fused"] = own["fused"]
        # The optimizer keeps the given tensors. They must be copies, because the originals are mapped from the file.
        for of_parameter in optimizer["state"].values():
            for name, value in of_parameter.items():
                if isinstance(value, Tensor):
                    of_parameter[name] = value.clone()
        self._optimizer.load_state_dict(optimizer)
        self._precision.restore(saved["precision"])

    def share_state(self) -> None:
        """See FileSaver. Sends one tensor after the other, in place.

        Horovod's own `broadcast_optimizer_state` makes a step with zero gradients if the optimizer has no state yet.
        The step changes the weights under weight decay, and counts as a step for Adam. Its `broadcast_object` can't
        send 2 GiB, and holds several copies of the object.
        """
        ranks, optimizer = self._ranks, self._optimizer
        empty = ranks.broadcast(without_values(optimizer.state_dict()) if ranks.rank == 0 else None)
        if ranks.rank != 0:
            optimizer.load_state_dict(with_values(empty))
        tensors = {f"model.{name}": each for name, each in self._network.state_dict().items()}
        tensors |= {f"optimizer.{name}": each for name, each in tensors_in(optimizer.state_dict()["state"])}
        ranks.overwrite(tensors)
        self._precision.restore(ranks.broadcast(self._precision.state()))

    def digest(self) -> str:
        """See FileSaver."""
        return digest_of(self._network.state_dict())

    def write_model(self, folder: Path, facts: Mapping[str, object]) -> None:
        """See FileSaver."""
        name, shape, classes = self._options.model, self._shape, self._classes
        state, names = self._network.state_dict(), self._class_names
        saved_model.write(
            folder,
            state,
            name=name,
            shape=shape,
            classes=classes,
            facts=facts,
            class_names=names,
            orient=self._options.orient,
        )


def right_answers(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how many labels are the best answers."""
    return (logits.argmax(1) == labels).sum()


def among_five(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how many labels are among the five best answers."""
    best = logits.topk(min(5, logits.shape[1]), sorted=False).indices
    return (best == labels.unsqueeze(1)).sum()


def digest_of(state: Mapping[str, object]) -> str:
    """Return the sha256 of the names and bytes of a network's state, ordered by name."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items(), key=itemgetter(0)):
        if not isinstance(value, Tensor):  # An object of a network's `get_extra_state`.
            continue
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _statistics(data: PictureSet) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel over the training set, on the scale 0 to 1.

    Without those of the data's index, the function counts the 256 values, so that the result is exact, equal on every
    rank, and needs no copy as floats.
    """
    if data.mean:
        return list(data.mean), [max(each, _LEAST_DEVIATION) for each in data.deviation]
    counts = np.zeros((data.shape[0], 256), np.int64)
    for ids in np.array_split(np.arange(len(data.train)), max(len(data.train) // 4096, 1)):
        for channel, pixels in enumerate(data.train.read(ids).pixels.swapaxes(0, 1)):
            counts[channel] += np.bincount(pixels.reshape(-1), minlength=256)
    values = np.arange(256) / 255
    means, deviations = [], []
    for each in counts:
        mean = float((each * values).sum() / each.sum())
        means.append(mean)
        deviations.append(
            max(float((each * (values - mean) ** 2).sum() / each.sum()) ** 0.5, _LEAST_DEVIATION)
        )
    return means, deviations


def _mapped(path: Path) -> dict[str, Any]:
    """Map a checkpoint: its tensors are read from the file on use, and need no memory of their own."""
    state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    return state
