"""The command line of the parameter server program."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, fields
from typing import Literal, cast

from dtj_trainer import contract
from dtj_trainer.models.keras_pictures import MODELS
from dtj_trainer.programs.options import not_negative, positive

Updates = Literal["Asynchronous", "Synchronous"]
UPDATES: tuple[Updates, ...] = ("Asynchronous", "Synchronous")


@dataclass(frozen=True)
class Options:
    """What the user chose; see `parse` for the meaning of each."""

    model: str
    data: str | None
    epochs: int
    max_steps: int | None
    seed: int
    updates: Updates
    batch_size: int
    optimizer: str
    lr: float
    momentum: float
    checkpoint_steps: int | None
    checkpoint_seconds: float
    tensorboard_seconds: float
    log_seconds: float


def parse(arguments: list[str] | None, program: str, description: str) -> Options:
    """Read the command line; ends the process with a usage message when it is wrong."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    what = parser.add_argument_group("what is trained")
    what.add_argument("--model", choices=MODELS, default="cnn", help="cnn is small, resnet20 is not")
    what.add_argument(
        "--data", metavar="URI", help="folder or s3://bucket/prefix; not given: the job's spec.data.uri"
    )
    what.add_argument("--epochs", type=positive(int), default=2, help="passes over the training set")
    what.add_argument("--max-steps", type=positive(int), help="stop after so many global steps, if earlier")
    what.add_argument(
        "--seed", type=int, default=1, help="of the first weights and the order of the examples"
    )

    how = parser.add_argument_group("how")
    given = os.environ.get(contract.ENV_UPDATES)
    how.add_argument(
        "--updates",
        choices=UPDATES,
        default=given if given in UPDATES else UPDATES[0],
        help=f"each worker for itself, or all together; the default is {contract.ENV_UPDATES}",
    )
    how.add_argument("--batch-size", type=positive(int), default=64, help="examples a step of each worker")
    how.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd", help="the update rule")
    how.add_argument("--lr", type=positive(float), default=0.02, help="learning rate")
    how.add_argument("--momentum", type=not_negative(float), default=0.9, help="for sgd")

    kept = parser.add_argument_group("what is kept, and when")
    kept.add_argument("--checkpoint-steps", type=positive(int), help="also save after each so many steps")
    kept.add_argument(
        "--checkpoint-seconds", type=positive(float), default=60.0, help="save at least so often"
    )
    kept.add_argument(
        "--tensorboard-seconds", type=positive(float), default=30.0, help="begin a new event file so often"
    )
    kept.add_argument(
        "--log-seconds",
        type=not_negative(float),
        default=5.0,
        help="between lines of the log and metrics.jsonl",
    )
    chosen = vars(parser.parse_args(arguments))
    return Options(**{field.name: cast("object", chosen[field.name]) for field in fields(Options)})  # type: ignore[arg-type]
