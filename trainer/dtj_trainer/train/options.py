"""The command line of the image classification programs."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtj_trainer import contract
from dtj_trainer.data.cache import DEFAULT_BYTES, BlockCache, limit_from_environment
from dtj_trainer.data.errors import DataError
from dtj_trainer.data.formats.images import PictureForm
from dtj_trainer.data.pictures import data_uri, load_pictures
from dtj_trainer.train.argument_types import epochs, names, not_negative, positive, share, step_range
from dtj_trainer.train.own_model import is_own

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtj_trainer.data.pictures import PictureSet


# DataOptions are the options of a program that select the data set, and add_data adds them to a parser.


@dataclass(frozen=True)
class DataOptions:
    """The data set, and what of it to read; see `add_data`."""

    data: str | None
    image_size: int | None
    grey: bool | None
    orient: bool
    classes: tuple[str, ...] | None
    data_cache: str | None
    data_cache_gigabytes: float | None
    skip_corrupt: bool

    def load(self) -> PictureSet:
        """Read the data set, or the job's where no other is given. Raises DataError."""
        channels = None if self.grey is None else 1 if self.grey else 3
        form = PictureForm(self.image_size, channels, self.orient)
        return load_pictures(
            data_uri(self.data),
            form,
            self.classes or (),
            cache=self._cache(),
            skip_corrupt=self.skip_corrupt,
        )

    def _cache(self) -> BlockCache | None:
        """Return the cache that the options name, or the job's cache if the options name none."""
        folder = os.environ.get(contract.ENV_DATA_CACHE) if self.data_cache is None else self.data_cache
        if not folder:
            return None
        if self.data_cache_gigabytes is not None:
            return BlockCache(Path(folder), int(self.data_cache_gigabytes * 1e9))
        return BlockCache(Path(folder), _job_bytes() if self.data_cache is None else DEFAULT_BYTES)


def _job_bytes() -> int:
    """Return the size of the job's cache in bytes. Raises DataError if the environment variable is no size."""
    try:
        return limit_from_environment(os.environ)
    except ValueError as error:
        raise DataError(str(error)) from error


def add_data(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Add the options of `DataOptions`."""
    group.add_argument(
        "--data", metavar="URI", help="folder or s3://bucket/prefix; not given: the job's spec.data.uri"
    )
    group.add_argument(
        "--image-size",
        type=positive(int),
        help="pixels of a side: the shorter side is resized, and the centre cut out; not given: as stored",
    )
    group.add_argument(
        "--grey",
        action=argparse.BooleanOptionalAction,
        help="read pictures in grey, or not; not given: files in colour, arrays as stored",
    )
    group.add_argument(
        "--orient",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="turn pictures as their EXIF orientation says; a served model then does so too",
    )
    group.add_argument(
        "--classes",
        type=names,
        metavar="NAME,...",
        help="train these classes alone, with labels in this order; a class without a name has its number",
    )
    group.add_argument(
        "--data-cache",
        metavar="FOLDER",
        help="keep blocks of shards here, for other processes, pods and jobs that have this folder; not given: the "
        "job's spec.data.cache",
    )
    group.add_argument(
        "--data-cache-gigabytes",
        type=positive(float),
        help="size of the cache at most; not given: 100, or the size in spec.data.cache",
    )
    group.add_argument(
        "--skip-corrupt",
        action="store_true",
        help="leave out and count examples of shards with an index that can't be read",
    )


# Options that divide a network among ranks: shards of the weights, parts of layers, or stages of a pipeline.


@dataclass(frozen=True, kw_only=True)
class DivisionOptions:
    """How the network is divided; see `add_division`. The defaults divide nothing."""

    fsdp: bool = False
    tensor_parallel: int = 1
    pipeline_stages: int = 1
    micro_batches: int | None = None

    @property
    def divided(self) -> bool:
        """Whether a rank holds only a part of the network."""
        return self.fsdp or self.model_ranks > 1

    @property
    def model_ranks(self) -> int:
        """The number of ranks that compute the same examples together. At most one of the factors is above 1."""
        return self.tensor_parallel * self.pipeline_stages

    @property
    def passes_of_stages(self) -> int:
        """The micro batches of a step. Stages are rarely idle with four for each (Huang et al., 2018, "GPipe")."""
        return self.micro_batches or 4 * self.pipeline_stages

    def check_ranks(self, ranks: int) -> None:
        """End the process unless `ranks` is a multiple of the ranks that one divided network needs."""
        if ranks % self.model_ranks:
            option = "--tensor-parallel" if self.tensor_parallel > 1 else "--pipeline-stages"
            raise SystemExit(
                f"{option}={self.model_ranks}: the job has {ranks} ranks, and needs a multiple of "
                f"{self.model_ranks}: change the option, or the number of workers or of ranks in each"
            )


def add_division(parser: argparse.ArgumentParser) -> None:
    """Add the options of `DivisionOptions`."""
    group = parser.add_argument_group("how the network is divided")
    group.add_argument(
        "--fsdp",
        action="store_true",
        help="divide weights, gradients and optimizer among the ranks that read different examples (FSDP2)",
    )
    group.add_argument(
        "--tensor-parallel",
        type=positive(int),
        default=1,
        metavar="N",
        help="let N ranks share each large dense layer, which a network must have",
    )
    group.add_argument(
        "--pipeline-stages",
        type=positive(int),
        default=1,
        metavar="N",
        help="cut the network into N stages of about the same work, one on each of N ranks",
    )
    group.add_argument(
        "--micro-batches",
        type=positive(int),
        metavar="M",
        help="parts of a step that pass through the stages one after the other; not given: 4 for each stage",
    )


def refuse_what_division_lacks(chosen: argparse.Namespace, refuse: Callable[[str], object]) -> None:
    """Call `refuse` with what is wrong and what would be right, if the options of a divided network do not fit."""
    tensor, stages = chosen.tensor_parallel > 1, chosen.pipeline_stages > 1
    for wrong, message in (
        (
            tensor and stages,
            "--tensor-parallel and --pipeline-stages can't be combined: use one of them, with --fsdp if you like",
        ),
        (
            chosen.micro_batches and not stages,
            "--micro-batches has an effect only with --pipeline-stages: give both, or leave --micro-batches out",
        ),
        (
            stages and chosen.micro_batches and chosen.micro_batches < chosen.pipeline_stages,
            f"--micro-batches={chosen.micro_batches} leaves stages without work: give at least as many as "
            f"--pipeline-stages={chosen.pipeline_stages}",
        ),
        (
            stages and chosen.grad_accumulation > 1,
            "--grad-accumulation does not go with --pipeline-stages, whose steps add up the gradients of micro "
            "batches: give a larger --batch-size and more --micro-batches",
        ),
    ):
        if wrong:
            refuse(message)
    if tensor or stages:
        _refuse_together(chosen, "--tensor-parallel" if tensor else "--pipeline-stages", refuse)
    if chosen.fsdp or tensor or stages:
        _refuse_divided(chosen, refuse)


def _refuse_together(chosen: argparse.Namespace, option: str, refuse: Callable[[str], object]) -> None:
    """Refuse options that can't be used where several ranks compute the same examples."""
    if chosen.skip_corrupt:
        refuse(
            f"--skip-corrupt does not go with {option}: one rank might skip an example that another rank reads. "
            "Leave it out; `dtj data check` finds corrupt examples"
        )
    if chosen.sync_batchnorm:
        refuse(f"--sync-batchnorm does not go with {option}: leave it out, or use --fsdp alone")


def _refuse_divided(chosen: argparse.Namespace, refuse: Callable[[str], object]) -> None:
    """Refuse options that can't be used with a divided network."""
    if chosen.compile:
        refuse(f"--compile does not go with {_divisions(chosen)}: leave --compile out")
    if chosen.amp_dtype == "float16":
        refuse(f"--amp-dtype=float16 does not go with {_divisions(chosen)}: use bfloat16")
    if chosen.channels_last and (chosen.fsdp or chosen.pipeline_stages > 1):
        refuse(f"--channels-last does not go with {_divisions(chosen)}: leave --channels-last out")


def _divisions(chosen: argparse.Namespace) -> str:
    """Return the given options that divide the network."""
    given = {
        "--fsdp": chosen.fsdp,
        "--tensor-parallel": chosen.tensor_parallel > 1,
        "--pipeline-stages": chosen.pipeline_stages > 1,
    }
    return " and ".join(name for name, is_given in given.items() if is_given)


# refuse_without_effect refuses options that would have no effect beside the others.


def refuse_without_effect(
    chosen: argparse.Namespace, default: Callable[[str], object], refuse: Callable[[str], object]
) -> None:
    """Call `refuse` with what is wrong and what would be right, if an option is given that changes nothing.

    `default` returns the default of an option by its name in `chosen`. An option that was given with its default
    value counts as not given.
    """

    def given(name: str) -> bool:
        return hasattr(chosen, name) and getattr(chosen, name) != default(name)

    for name, needed, holds in (
        ("step_epochs", "--schedule=step", chosen.schedule == "step"),
        ("step_gamma", "--schedule=step", chosen.schedule == "step"),
        ("step_at", "--schedule=step", chosen.schedule == "step"),
        ("momentum", "--optimizer=sgd", chosen.optimizer == "sgd"),
    ):
        if given(name) and not holds:
            refuse(
                f"--{name.replace('_', '-')} has an effect only with {needed}: give both, or leave the option out"
            )
    if chosen.global_batch_size:
        whole = (
            "it fixes the examples of a step on all ranks together, and --lr is the rate for so many examples"
        )
        for name in ("grad_accumulation", "scale_lr"):
            if given(name) and getattr(chosen, name):
                option = f"--{name.replace('_', '-')}"
                refuse(
                    f"{option} has no effect with --global-batch-size: {whole}: leave one of the options out"
                )
    if chosen.warmup_start is not None and chosen.warmup_epochs == 0:
        refuse("--warmup-start has no effect with --warmup-epochs=0: raise --warmup-epochs, or leave it out")
    if getattr(chosen, "amp_dtype", None) and chosen.amp is False:
        refuse("--amp-dtype has no effect with --no-amp: leave one of the options out")


OPTIMIZERS = ("sgd", "adam", "adamw", "adadelta")
SCHEDULES = ("constant", "cosine", "step")
_WARMUP_EPOCHS = 0.25
_WARMUP_START = 0.01


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(DivisionOptions, DataOptions):
    """The user's choices; see `parse` for the meaning of each."""

    model: str
    epochs: int
    max_steps: int | None
    batch_size: int
    global_batch_size: int | None
    optimizer: str
    lr: float
    scale_lr: bool
    momentum: float
    weight_decay: float
    warmup_epochs: float | None
    schedule: str
    augment: bool
    seed: int
    amp: bool | None
    grad_accumulation: int
    sync_batchnorm: bool
    data_workers: int
    checkpoint_steps: int | None
    checkpoint_seconds: float
    tensorboard_seconds: float
    log_seconds: float
    async_save: bool
    log_steps: int | None
    warmup_start: float | None = None
    step_epochs: float = 10.0
    step_gamma: float = 0.1
    step_at: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    clip_norm: float | None = None
    amp_dtype: str | None = None
    channels_last: bool = False
    compile: bool = False
    cudnn_benchmark: bool = False
    deterministic: bool = False
    profile_steps: tuple[int, int] | None = None
    export: bool = True

    def step_size(self, ranks: int) -> int:
        """Return the examples of a step on all ranks together."""
        return self.global_batch_size or self.batch_size * self.grad_accumulation * ranks

    def passes(self, ranks: int) -> int:
        """Return the largest number of passes of a step on one rank: a pass has at most `batch_size` examples."""
        return math.ceil(math.ceil(self.step_size(ranks) / ranks) / self.batch_size)

    def rate_batches(self, ranks: int) -> int:
        """Return how many batches of the size that `lr` is for a step has: one with `global_batch_size`."""
        return 1 if self.global_batch_size else ranks * self.grad_accumulation

    @property
    def warmup_length(self) -> float:
        """The epochs of the warm-up."""
        return _WARMUP_EPOCHS if self.warmup_epochs is None else self.warmup_epochs

    def warmup_from(self, scale: float) -> float:
        """Return where the warm-up to `scale` times `lr` begins, as a factor of `lr`."""
        if self.warmup_start is not None:
            return self.warmup_start / self.lr
        # Without a scaled rate, there is a warm-up only if the user asks for one.
        return _WARMUP_START if scale == 1 and self.warmup_epochs else 1.0


def parse(
    arguments: list[str] | None,
    program: str,
    description: str,
    models: tuple[str, ...],
    *,
    mixed_precision: bool = True,
    grad_accumulation: bool = False,
    sync_batchnorm: bool = False,
    pytorch: bool = False,
    division: bool = False,
) -> TrainingOptions:
    """Read the command line; a usage message ends the process if it is wrong.

    `models` are the names of built-in networks that --model accepts; the first is the default. The flags say which
    options of the program's framework there are: --amp, --grad-accumulation, --sync-batchnorm, with `pytorch`
    those of its precision and speed, with `division` (and `pytorch`) those of a divided network.
    """
    parser = new_parser(program, description)
    what = add_what_is_trained(parser, models)
    what.add_argument(
        "--augment", action=argparse.BooleanOptionalAction, default=False, help="shift and mirror pictures"
    )

    how = parser.add_argument_group("how")
    part = "pass" if grad_accumulation else "step"
    how.add_argument("--batch-size", type=positive(int), default=64, help=f"examples a {part} on each rank")
    how.add_argument(
        "--global-batch-size",
        type=positive(int),
        help="examples a step on all ranks together, whatever their number; --lr is then for this batch"
        + (", and a rank makes the passes that --batch-size demands" if grad_accumulation else ""),
    )
    how.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd", help="the update rule")
    how.add_argument("--lr", type=positive(float), default=0.05, help="learning rate for one rank")
    how.add_argument(
        "--scale-lr",
        action=argparse.BooleanOptionalAction,
        help="on by default: multiply the learning rate by the number of ranks (and of passes a step) for sgd "
        "(Goyal et al., 2017), by its square root for the others (Malladi et al., 2022)",
    )
    add_warmup(how)
    add_schedule(how, default="cosine")
    how.add_argument("--momentum", type=not_negative(float), default=0.9, help="momentum of sgd")
    add_penalties(how, weight_decay=1e-4)
    if mixed_precision:
        how.add_argument(
            "--amp",
            "--bf16",
            action=argparse.BooleanOptionalAction,
            default=None,
            help="mixed precision: bfloat16, or float16 with a scaled loss on GPUs that lack it; not given: on GPUs",
        )
    if grad_accumulation:
        how.add_argument(
            "--grad-accumulation",
            type=positive(int),
            default=1,
            help="passes whose gradients one step adds up",
        )
    if sync_batchnorm:
        how.add_argument(
            "--sync-batchnorm",
            action=argparse.BooleanOptionalAction,
            default=False,
            help="normalize by the examples of all ranks, not of each rank alone",
        )
    repeatable = how.add_mutually_exclusive_group()
    repeatable.add_argument(
        "--deterministic",
        action="store_true",
        help="use algorithms that repeat bit for bit, also on GPUs; an operation without one fails by name",
    )
    if pytorch:
        repeatable.add_argument(
            "--cudnn-benchmark",
            action="store_true",
            help="let cuDNN time its algorithms for each new shape of a batch, and use the fastest",
        )
        _add_speed(how)
    parser.set_defaults(amp=None if mixed_precision else False, grad_accumulation=1, sync_batchnorm=False)
    how.add_argument(
        "--data-workers",
        type=not_negative(int),
        default=1,
        help="threads a rank that prepare batches, unless they are small and not augmented",
    )

    keep = add_what_is_kept(parser, checkpoint_seconds=300.0, log_seconds=2.0)
    keep.add_argument("--log-steps", type=positive(int), help="also report the loss every so many steps")
    keep.add_argument(
        "--async-save",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="save beside the training; rank 0 needs memory for a second copy of weights and optimizer",
    )
    if division:
        add_division(parser)
    parsed = parser.parse_args(arguments)
    refuse_without_effect(parsed, parser.get_default, parser.error)
    if division:
        refuse_what_division_lacks(parsed, parser.error)
    if parsed.scale_lr is None:
        parsed.scale_lr = True
    return TrainingOptions(**given(parsed, TrainingOptions))


def given(parsed: argparse.Namespace, options: type[TrainingOptions]) -> dict[str, Any]:
    """Return the fields of `options` that a parser of some of the options has set."""
    return {each.name: getattr(parsed, each.name) for each in fields(options) if hasattr(parsed, each.name)}


def add_warmup(how: argparse._ArgumentGroup) -> None:
    """Add the options of the rise of the rate."""
    how.add_argument(
        "--warmup-epochs",
        type=not_negative(float),
        help="epochs of the rise to the learning rate, also to that of more ranks after a resume; not given: "
        f"{_WARMUP_EPOCHS}, if the rate is scaled",
    )
    how.add_argument(
        "--warmup-start",
        type=positive(float),
        help="learning rate at which the warm-up begins; not given: --lr if the rate is scaled, otherwise "
        f"{_WARMUP_START:g} times --lr",
    )


def add_schedule(how: argparse._ArgumentGroup, *, default: str) -> None:
    """Add the options of the decay of the rate."""
    how.add_argument(
        "--schedule",
        choices=SCHEDULES,
        default=default,
        help="decay of the rate after the warm-up; a cosine ends with --epochs or --max-steps",
    )
    how.add_argument(
        "--step-epochs", type=positive(float), default=10.0, help="for --schedule=step: epochs of a rate"
    )
    how.add_argument(
        "--step-at",
        type=epochs,
        default=(),
        metavar="EPOCH,...",
        help="for --schedule=step: the epochs after which the rate falls, in place of --step-epochs",
    )
    how.add_argument(
        "--step-gamma", type=positive(float), default=0.1, help="for --schedule=step: factor of the next rate"
    )


def add_penalties(how: argparse._ArgumentGroup, *, weight_decay: float) -> None:
    """Add the options of what changes loss and gradient. `weight_decay`: the default."""
    how.add_argument(
        "--weight-decay",
        type=not_negative(float),
        default=weight_decay,
        help="L2 penalty; adamw shrinks the weights instead",
    )
    how.add_argument(
        "--label-smoothing",
        type=share,
        default=0.0,
        help="part of each label, below 1, that is spread evenly over all classes in training",
    )
    how.add_argument(
        "--clip-norm",
        type=positive(float),
        help="largest norm of the gradient, which is averaged over all examples",
    )


def _add_speed(how: argparse._ArgumentGroup) -> None:
    """Add options of PyTorch that change the speed of a step."""
    how.add_argument(
        "--amp-dtype",
        choices=("bfloat16", "float16"),
        help="type of mixed precision, in place of the one that --amp selects; float16 needs a GPU",
    )
    how.add_argument(
        "--channels-last", action="store_true", help="keep the channels of a pixel together in memory (NHWC)"
    )
    how.add_argument(
        "--compile",
        action="store_true",
        help="compile the network by torch.compile, which needs a C++ compiler",
    )
    how.add_argument(
        "--profile-steps",
        type=step_range,
        metavar="A:B",
        help="trace steps A to B, counted as in the log, on rank 0, below tensorboard/profile",
    )


def new_parser(program: str, description: str) -> argparse.ArgumentParser:
    """Make the parser of a program run by `python -m`."""
    return argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=_WithDefaults
    )


def add_what_is_trained(parser: argparse.ArgumentParser, models: tuple[str, ...]) -> argparse._ArgumentGroup:
    """Add options of model, data and duration; `models`: see `parse`."""
    what = parser.add_argument_group("what is trained")
    what.add_argument(
        "--model",
        type=_model_of(models),
        default=models[0],
        metavar="NAME",
        help=f"{', '.join(models)}, or package.module:factory for a network of your own",
    )
    add_data(what)
    what.add_argument("--epochs", type=positive(int), default=2, help="passes over the training set")
    what.add_argument("--max-steps", type=positive(int), help="stop after so many steps in all, if earlier")
    what.add_argument(
        "--seed",
        type=not_negative(int),
        default=1,
        help="seed of the first weights and of the order of the examples",
    )
    return what


def add_what_is_kept(
    parser: argparse.ArgumentParser, *, checkpoint_seconds: float, log_seconds: float
) -> argparse._ArgumentGroup:
    """Add options of the intervals of checkpoints, event files and log lines, with these defaults in seconds."""
    keep = parser.add_argument_group("what is kept")
    keep.add_argument("--checkpoint-steps", type=positive(int), help="also save every so many steps")
    keep.add_argument(
        "--checkpoint-seconds",
        type=positive(float),
        default=checkpoint_seconds,
        help="also save after this many seconds",
    )
    keep.add_argument(
        "--tensorboard-seconds",
        type=positive(float),
        default=900.0,
        help="seconds until a new event file begins",
    )
    keep.add_argument(
        "--log-seconds",
        type=not_negative(float),
        default=log_seconds,
        help="seconds between two lines of progress",
    )
    keep.add_argument(
        "--export",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also write the model as model.onnx, for `dtj serve`; needs the packages of the extra `export`",
    )
    return keep


def _model_of(models: tuple[str, ...]) -> Callable[[str], str]:
    """Accept a name or the path of a factory, for argparse's `type`."""

    def model(text: str) -> str:
        if text not in models and not is_own(text):
            raise argparse.ArgumentTypeError(
                f"there is no model {text!r}: choose from {', '.join(models)}, or give package.module:factory"
            )
        return text

    return model


class _WithDefaults(argparse.ArgumentDefaultsHelpFormatter):
    """Adds an option's default to its help, if the default is not None."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)
