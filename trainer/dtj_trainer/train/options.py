"""The command line of the image classification programs."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, fields
from pathlib import Path

from dtj_trainer.data.cache import BlockCache
from dtj_trainer.data.formats.images import Form
from dtj_trainer.data.pictures import PictureSet, data_uri, load_pictures


@dataclass(frozen=True)
class DataOptions:
    """The data set, and what of it to read; see `add_data`."""

    data: str | None
    image_size: int | None
    grey: bool | None
    classes: tuple[str, ...] | None
    data_cache: str | None
    data_cache_gigabytes: float
    skip_corrupt: bool

    def load(self) -> PictureSet:
        """Read the data set, or the job's where no other is given. Raises DataError."""
        channels = None if self.grey is None else 1 if self.grey else 3
        form = Form(self.image_size, channels)
        cache = (
            BlockCache(Path(self.data_cache), int(self.data_cache_gigabytes * 1e9))
            if self.data_cache
            else None
        )
        return load_pictures(
            data_uri(self.data), form, self.classes or (), cache=cache, skip_corrupt=self.skip_corrupt
        )


@dataclass(frozen=True)
class Options(DataOptions):
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
    warmup_epochs: float
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
    log_steps: int | None

    def step_size(self, ranks: int) -> int:
        """Return the examples of a step on all ranks together."""
        return self.global_batch_size or self.batch_size * self.grad_accumulation * ranks

    def passes(self, ranks: int) -> int:
        """Return the most passes of a step on one rank: each pass has at most `batch_size` examples."""
        return math.ceil(math.ceil(self.step_size(ranks) / ranks) / self.batch_size)

    def rate_batches(self, ranks: int) -> int:
        """Return how many batches of `lr` a step has. With `global_batch_size` the whole step is that batch."""
        return 1 if self.global_batch_size else ranks * self.grad_accumulation


def parse(
    arguments: list[str] | None,
    program: str,
    description: str,
    models: tuple[str, ...],
    *,
    mixed_precision: bool = True,
    grad_accumulation: bool = False,
    sync_batchnorm: bool = False,
) -> Options:
    """Read the command line; a usage message ends the process if it is wrong.

    `models` are the names that --model accepts: a small model, which is the default, and a larger one. The flags
    say which options of the program's framework there are: --amp, --grad-accumulation, --sync-batchnorm.
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
    how.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd", help="the update rule")
    how.add_argument("--lr", type=positive(float), default=0.05, help="learning rate for one rank")
    how.add_argument(
        "--scale-lr",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="multiply the learning rate by the number of ranks (and of passes a step) for sgd (Goyal et al., 2017), "
        "by its square root for adam (Malladi et al., 2022)",
    )
    how.add_argument(
        "--warmup-epochs",
        type=not_negative(float),
        default=0.25,
        help="to reach the scaled learning rate, also that of more ranks after a resume",
    )
    how.add_argument(
        "--schedule",
        choices=("constant", "cosine"),
        default="cosine",
        help="of the rate after the warm-up; a cosine ends with --epochs or --max-steps",
    )
    how.add_argument("--momentum", type=not_negative(float), default=0.9, help="for sgd")
    how.add_argument("--weight-decay", type=not_negative(float), default=1e-4, help="L2 penalty")
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
    parser.set_defaults(amp=None if mixed_precision else False, grad_accumulation=1, sync_batchnorm=False)
    how.add_argument(
        "--data-workers",
        type=not_negative(int),
        default=1,
        help="threads a rank that prepare batches, unless they are small and not augmented",
    )

    keep = add_what_is_kept(parser, checkpoint_seconds=300.0, log_seconds=2.0)
    keep.add_argument("--log-steps", type=positive(int), help="also report the loss every so many steps")
    parsed = parser.parse_args(arguments)
    return Options(**{field.name: getattr(parsed, field.name) for field in fields(Options)})


def new_parser(program: str, description: str) -> argparse.ArgumentParser:
    """Make the parser of a program run by `python -m`."""
    return argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=_WithDefaults
    )


def add_what_is_trained(parser: argparse.ArgumentParser, models: tuple[str, ...]) -> argparse._ArgumentGroup:
    """Add options of model, data and duration; `models`: see `parse`."""
    what = parser.add_argument_group("what is trained")
    what.add_argument(
        "--model", choices=models, default=models[0], help=f"{models[0]} is small, {models[1]} is not"
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
        "--classes",
        type=_names,
        metavar="NAME,...",
        help="train these classes alone, with labels in this order",
    )
    group.add_argument(
        "--data-cache",
        metavar="FOLDER",
        help="keep blocks of shards here, for other processes, pods and jobs that have this folder",
    )
    group.add_argument(
        "--data-cache-gigabytes", type=positive(float), default=100.0, help="size of the cache at most"
    )
    group.add_argument(
        "--skip-corrupt",
        action="store_true",
        help="leave out and count examples of shards with an index that can't be read",
    )


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if "" in names or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of different names")
    return names


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
    return keep


class _WithDefaults(argparse.ArgumentDefaultsHelpFormatter):
    """Adds an option's default to its help, if the default is not None."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


class _Number:
    """A number with a lower bound, for argparse's `type`."""

    def __init__(self, kind: type[int] | type[float], *, zero: bool) -> None:
        self._kind = kind
        self._zero = zero

    def __call__(self, text: str) -> float:
        """Convert the text, or raise argparse's error."""
        try:
            value = self._kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not (value > 0 or (self._zero and value == 0)):
            raise argparse.ArgumentTypeError(f"{text} must be {'0 or more' if self._zero else 'more than 0'}")
        return value


def positive(kind: type[int] | type[float]) -> _Number:
    """Accept numbers greater than 0, for argparse's `type`."""
    return _Number(kind, zero=False)


def not_negative(kind: type[int] | type[float]) -> _Number:
    """Accept numbers of 0 or more, for argparse's `type`."""
    return _Number(kind, zero=True)
