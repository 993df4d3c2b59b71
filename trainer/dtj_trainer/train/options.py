"""The command line of the image classification programs."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from dtj_trainer.train.argument_types import epochs, not_negative, positive, share, step_range
from dtj_trainer.train.data_options import DataOptions, add_data
from dtj_trainer.train.division_options import DivisionOptions, add_division, refuse_what_division_lacks
from dtj_trainer.train.option_checks import refuse_without_effect
from dtj_trainer.train.own_model import is_own

if TYPE_CHECKING:
    from collections.abc import Callable


OPTIMIZERS = ("sgd", "adam", "adamw", "adadelta")
SCHEDULES = ("constant", "cosine", "step")
_WARMUP_EPOCHS = 0.25
_WARMUP_START = 0.01


@dataclass(frozen=True, kw_only=True)
class Options(DivisionOptions, DataOptions):
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
        """Return the most passes of a step on one rank: each pass has at most `batch_size` examples."""
        return math.ceil(math.ceil(self.step_size(ranks) / ranks) / self.batch_size)

    def rate_batches(self, ranks: int) -> int:
        """Return how many batches of `lr` a step has. With `global_batch_size` the whole step is that batch."""
        return 1 if self.global_batch_size else ranks * self.grad_accumulation

    @property
    def warmup_length(self) -> float:
        """The epochs of the warm-up."""
        return _WARMUP_EPOCHS if self.warmup_epochs is None else self.warmup_epochs

    def warmup_from(self, scale: float) -> float:
        """Return where the warm-up to `scale` times `lr` begins, as a factor of `lr`."""
        if self.warmup_start is not None:
            return self.warmup_start / self.lr
        # Where nothing is scaled, a warm-up is made if it is asked for.
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
) -> Options:
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
    how.add_argument("--momentum", type=not_negative(float), default=0.9, help="for sgd")
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
    return Options(**given(parsed, Options))


def given(parsed: argparse.Namespace, options: type[Options]) -> dict[str, Any]:
    """Return the fields of `options` that a parser of some of the options has set."""
    return {each.name: getattr(parsed, each.name) for each in fields(options) if hasattr(parsed, each.name)}


def add_warmup(how: argparse._ArgumentGroup) -> None:
    """Add the options of the rise of the rate."""
    how.add_argument(
        "--warmup-epochs",
        type=not_negative(float),
        help=f"to reach the learning rate, also that of more ranks after a resume; not given: {_WARMUP_EPOCHS}, if "
        "the rate is scaled",
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
        help="of the rate after the warm-up; a cosine ends with --epochs or --max-steps",
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
        help="of the first weights and the order of the examples",
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
        help="also save after so long",
    )
    keep.add_argument(
        "--tensorboard-seconds", type=positive(float), default=900.0, help="longest time of an event file"
    )
    keep.add_argument(
        "--log-seconds", type=not_negative(float), default=log_seconds, help="between two lines of progress"
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
