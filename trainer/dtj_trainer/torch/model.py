"""A picture classifier in PyTorch, as one of several ranks trains and saves it."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import shutil
import time
from contextlib import nullcontext
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch._dynamo  # Optimizers import torch._dynamo, which takes 2 s: import it before a rank waits for others.
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Adadelta, Adam, AdamW, Optimizer
from torch.profiler import ProfilerActivity, profile

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.torch import buffers, saved_model, trial
from dtj_trainer.torch.models import build
from dtj_trainer.torch.models.outputs import logits_and_loss
from dtj_trainer.torch.staging import StagedState
from dtj_trainer.torch.state_dicts import tensors_in, with_values, without_values
from dtj_trainer.torch.step_times import NoClock, StepClock
from dtj_trainer.train.file_saver import FileSaver
from dtj_trainer.train.own_model import is_own
from dtj_trainer.train.protocols import PictureModel, Tested
from dtj_trainer.train.seeds import seed_of
from dtj_trainer.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.data.sharding import Share
    from dtj_trainer.torch.models import PictureClassifier
    from dtj_trainer.torch.ranks import TensorRanks
    from dtj_trainer.train.options import TrainingOptions
    from dtj_trainer.train.protocols import StepParts


# make_optimizer is the counterpart of `dtj_trainer.keras.optimizers`.


def make_optimizer(options: TrainingOptions, network: nn.Module, *, fused: bool = False) -> Optimizer:
    """Make the optimizer of `--optimizer`, with PyTorch's defaults for what has no option.

    fused: update all weights in one kernel. A fused optimizer also skips a step with infinite gradients on the GPU:
    without it, `GradScaler` makes the CPU wait for the GPU in each step.
    """
    weights, rate, decay = network.parameters(), options.lr, options.weight_decay
    one_kernel = fused or None  # None: PyTorch chooses, as without the argument.
    match options.optimizer:
        case "adam":
            return Adam(weights, lr=rate, weight_decay=decay, fused=one_kernel)
        case "adamw":
            return AdamW(weights, lr=rate, weight_decay=decay, fused=one_kernel)
        case "adadelta":
            return Adadelta(weights, lr=rate, weight_decay=decay)
        case _:
            return SGD(weights, lr=rate, momentum=options.momentum, weight_decay=decay, fused=one_kernel)


# Precision is the mixed precision of a step, with which all ranks take or skip the step together.


class Precision:
    """The precision of a step. Weights and gradients stay float32, so that ranks average in float32.

    `enabled`: None means on GPUs only. `dtype`: `bfloat16` or `float16`; None means bfloat16 if the device supports
    it, otherwise float16. The loss of float16 is scaled, so that small gradients don't vanish. Ends the process if
    the device has no such type.
    """

    def __init__(self, device: torch.device, enabled: bool | None, dtype: str | None = None) -> None:
        self._device = device.type
        self.dtype: torch.dtype | None = None
        self._scaler: torch.amp.GradScaler | None = None
        if enabled is None:
            enabled = device.type == "cuda" or dtype is not None
        if not enabled:
            return
        has_bfloat16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
        self.dtype = torch.bfloat16 if (dtype or "bfloat16") == "bfloat16" and has_bfloat16 else torch.float16
        if dtype == "bfloat16" and not has_bfloat16:
            raise SystemExit("--amp-dtype=bfloat16: this GPU has no bfloat16: use float16")
        if self.dtype is torch.float16:
            if device.type == "cpu":
                raise SystemExit("--amp-dtype=float16 needs a GPU: on CPUs, mixed precision is bfloat16")
            self._scaler = torch.amp.GradScaler(device.type)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which the forward pass runs."""
        return torch.autocast(self._device, dtype=self.dtype) if self.dtype else nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a step, or one of its passes."""
        torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))

    def step(
        self, optimizer: torch.optim.Optimizer, clip: Callable[[Sequence[Tensor]], object] | None = None
    ) -> None:
        """Update the weights by their gradients, whose norm `clip` reduces.

        The gradients are the mean of all ranks', so that all ranks find the same norm and the same infinities, and
        take or skip the step together.
        """
        if clip is not None:
            if self._scaler is not None:
                self._scaler.unscale_(optimizer)
            clip([each for group in optimizer.param_groups for each in group["params"]])
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return self._scaler.state_dict() if self._scaler else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        if self._scaler and state:
            self._scaler.load_state_dict(state)


# StepProfile writes a trace of some steps for TensorBoard's profiler plugin, and Horovod's timeline of these steps.

log = logging.getLogger(__name__)


class StepProfile:
    """Traces the steps of `--profile-steps`, counted from 1, on rank 0. Without steps it does nothing.

    The files are below `tensorboard/profile`.
    """

    def __init__(self, steps: tuple[int, int] | None, ranks: TensorRanks) -> None:
        self._steps, self._ranks = steps, ranks
        self._folder = Path(contract.root()) / contract.TENSORBOARD / "profile"
        self._running: profile | None = None

    def before(self, step: int) -> None:
        """Start or stop the trace before a step, on all ranks. `step` counts the steps that are done."""
        if self._steps is None:
            return
        first, last = self._steps
        if step >= last:
            self.close()
        elif step + 1 >= first and self._running is None:
            self._start()

    def _start(self) -> None:
        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        self._running = profile(activities=kinds)
        if self._ranks.rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._running.start()
        self._ranks.start_timeline(self._folder / "horovod-timeline.json")

    def close(self) -> None:
        """Write the trace, if steps were traced."""
        if self._running is None:
            return
        self._ranks.stop_timeline()
        if self._ranks.rank == 0:
            self._running.stop()
            name = f"rank-0.{time.time_ns() // 1_000_000}.pt.trace.json"
            write_whole(self._folder / name, self._write)
            log.info("the trace of steps %d to %d is in %s", *(self._steps or ()), self._folder / name)
        self._running = self._steps = None

    def _write(self, path: Path) -> None:
        assert self._running is not None
        self._running.export_chrome_trace(str(path))


# These functions set PyTorch's switches for deterministic or fast algorithms, and for the compiler.

_COMPILERS = ("g++", "clang++", "c++")


def set_algorithms(options: TrainingOptions) -> None:
    """Select algorithms by `--deterministic` and `--cudnn-benchmark`. Call it before the first work of a GPU."""
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    if options.deterministic:
        # cuBLAS reads the variable when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)


def compile_in_place(network: nn.Module) -> None:
    """Compile the network at its first pass. Ends the process if there is no C++ compiler."""
    if not shutil.which(os.environ.get("CXX", "")) and not any(map(shutil.which, _COMPILERS)):
        raise SystemExit(
            f"--compile needs a C++ compiler, which this image lacks: install one of {', '.join(_COMPILERS)}, "
            "or name it in CXX"
        )
    network.compile()


# BatchNorm over the examples of all ranks. PyTorch's SyncBatchNorm needs GPUs; this module has one for CPUs.


def synchronize(network: nn.Module, *, on_gpu: bool) -> None:
    """Let each BatchNorm of a network, which will be on a CPU or a GPU, normalize by the examples of all ranks.

    Weights and statistics stay. The ranks of the default process group make equally many forward passes. A rank may
    make a pass without an example. Ends the process for a layer on CPUs without weights or running statistics.
    """
    for name, child in network.named_children():
        if not isinstance(child, _BatchNorm):
            synchronize(child, on_gpu=on_gpu)
        elif on_gpu:
            setattr(network, name, nn.SyncBatchNorm.convert_sync_batchnorm(child))  # type: ignore[no-untyped-call]
        elif not (child.affine and child.track_running_stats):
            flag = "track_running_stats" if child.affine else "affine"
            raise SystemExit(
                f"--sync-batchnorm: the layer {name} has {flag}=False, which works on GPUs only: leave the option out"
            )
        else:
            layer = CpuSyncBatchNorm(child.num_features, child.eps, child.momentum, dtype=child.weight.dtype)
            layer.load_state_dict(child.state_dict())
            setattr(network, name, layer)


class CpuSyncBatchNorm(_BatchNorm):
    """BatchNorm over the examples of all ranks.

    A single value of a channel on all ranks has no variance: it is normalized by the running statistics, which stay
    unchanged. DistributedDataParallel refuses every subclass of PyTorch's SyncBatchNorm on CPUs.
    """

    momentum: float

    def _check_input_dim(self, _values: Tensor) -> None:
        """Accept any number of axes."""

    def forward(self, values: Tensor) -> Tensor:
        """Normalize (batch, channels, …), while training by the mean and the variance over all ranks."""
        if not self.training:
            return super().forward(values)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        exact = values.to(self.weight.dtype)  # with mixed precision, `values` has bfloat16
        own = torch.full((1,), values.numel() // self.num_features, dtype=torch.float64)
        total = _all_reduce(torch.cat([_sum(exact), own]))
        count = total[-1].detach()
        if count == 1:
            mean, variance = self.running_mean, self.running_var
            centered = exact - _of_channel(mean, exact)
        else:
            mean = (total[:-1] / count).to(exact.dtype)
            centered = exact - _of_channel(mean, exact)
            variance = (_all_reduce(_sum(centered * centered)) / count).to(exact.dtype)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance * (count / (count - 1)).to(exact.dtype), self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        return (centered * _of_channel(scale, exact) + _of_channel(self.bias, exact)).to(values.dtype)


def _all_reduce(values: Tensor) -> Tensor:
    """Add up over all ranks, differentiably."""
    total: Tensor = _AllReduce.apply(values)  # type: ignore[no-untyped-call]
    return total


class _AllReduce(torch.autograd.Function):
    """The sum over all ranks. Each rank's loss depends on it, so the gradient is the sum of all ranks' gradients."""

    @staticmethod
    def forward(_context: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def _sum(values: Tensor) -> Tensor:
    """Add up (batch, channels, …) for each channel, in float64: float32 would add a rounding error."""
    return values.sum((0, *range(2, values.dim())), dtype=torch.float64)


def _of_channel(values: Tensor, like: Tensor) -> Tensor:
    """Reshape values, one for each channel, so that they broadcast over `like`."""
    return values.view(-1, *[1] * (like.dim() - 2))


_STATE = ("model", "optimizer", "precision")
"""The entries of a checkpoint that are not plain data."""
_LEAST_DEVIATION = 1e-3
"""The least deviation of a channel. Pixels are divided by the deviation, which is 0 for a channel of one value."""


class TorchModel(PictureModel[tuple[Tensor, Tensor]]):
    """See PictureModel."""

    _without_gradients: ClassVar[type[torch.inference_mode | torch.no_grad]] = torch.inference_mode
    """The mode of a test."""
    _may_fuse: ClassVar[bool] = True
    """Whether the weights are plain tensors, as a fused optimizer needs."""

    def __init__(
        self, options: TrainingOptions, data: PictureSet, device: torch.device, ranks: TensorRanks
    ) -> None:
        self._ranks = ranks
        self._device = device
        self._seed, self._pass_size = options.seed, options.batch_size
        self._clip_norm, self._smoothing = options.clip_norm, options.label_smoothing
        self._layout = torch.channels_last if options.channels_last else torch.preserve_format
        set_algorithms(options)
        torch.manual_seed(options.seed)  # The first weights are the same on all ranks.
        mean, deviation = _statistics(data)
        self.precision = Precision(device, options.amp, options.amp_dtype)
        whole = build(options.model, data.shape, data.classes, mean, deviation)
        self._describe = options.model, data.shape, data.classes
        if is_own(options.model) and not options.divided and checkpoints.newest() is None:
            sizes = trial.smallest_passes(len(data.train), options, ranks.data_size)
            trial.try_passes(whole, sizes, data.shape, data.classes, device, self.precision.autocast)
        if options.sync_batchnorm and ranks.size > 1:
            synchronize(whole, on_gpu=device.type == "cuda")
        self.network = self._placed(whole, options, data.shape)
        optimizer = make_optimizer(options, self.network, fused=self._may_fuse and device.type == "cuda")
        self._averaging = ranks.averaging(
            self.network, optimizer, options.passes(ranks.data_size), every_weight=not is_own(options.model)
        )
        self.optimizer = self._averaging.optimizer
        if options.compile:
            compile_in_place(self.network)
        self._clock = self._new_clock()
        self._profile = StepProfile(options.profile_steps, ranks)
        self._sums = torch.zeros(4, dtype=torch.float64, device=device)  # loss, right, examples, top 5

    def _placed(
        self, network: PictureClassifier, options: TrainingOptions, shape: tuple[int, int, int]
    ) -> nn.Module:
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
        # A share without an example that counts becomes an empty batch, which changes no statistics.
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
        # Scale the sum so that its average over the ranks is the mean over all examples of the step, even if ranks
        # have different counts.
        summed = losses.sum()
        if own_loss is not None:
            # The network's own loss is a mean over the examples of the pass, or depends on weights alone. Weighted by
            # the examples of its pass, it counts once a step in both cases.
            summed = summed + own_loss.float() * len(labels)
        self.precision.backward(summed * (self._ranks.data_size / total))
        self._clock.passed()
        self._add_up(losses, logits, labels)

    def _add_up(self, losses: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add this pass to the sums of loss and right answers. Labels below 0 do not count."""
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
        """The number that seeds this rank's random numbers. Ranks with the same share draw the same numbers."""
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

    def __init__(
        self, options: TrainingOptions, data: PictureSet, model: TorchModel, ranks: TensorRanks
    ) -> None:
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
        """See Saver. The first copy also allocates memory, which takes several times as long as a later copy."""
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
        # Keep this run's `fused`: the checkpoint may be of another device, or of a release without fused optimizers.
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
        ranks.broadcast_tensors(tensors)
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
    """Return for how many examples the label has the highest logit."""
    return (logits.argmax(1) == labels).sum()


def among_five(logits: Tensor, labels: Tensor) -> Tensor:
    """Return for how many examples the label has one of the five highest logits."""
    best = logits.topk(min(5, logits.shape[1]), sorted=False).indices
    return (best == labels.unsqueeze(1)).sum()


def digest_of(state: Mapping[str, object]) -> str:
    """Return the sha256 of the names and bytes of a network's state, ordered by name."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items(), key=itemgetter(0)):
        if not isinstance(value, Tensor):  # The value is an object of the network's `get_extra_state`.
            continue
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _statistics(data: PictureSet) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel over the training set, on the scale 0 to 1.

    Without statistics in the data's index, the function counts the 256 values of a pixel: the result is exact and
    equal on every rank, and needs no copy of the pixels as floats.
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
    """Load a checkpoint by mmap: the kernel reads a tensor from the file on its first use."""
    state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    return state
