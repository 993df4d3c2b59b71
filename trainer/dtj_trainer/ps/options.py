"""The command line of the parameter server program."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Literal

from dtj_trainer import contract
from dtj_trainer.keras.models import MODELS
from dtj_trainer.train import options
from dtj_trainer.train.argument_types import not_negative, positive
from dtj_trainer.train.options import (
    add_penalties,
    add_schedule,
    add_warmup,
    add_what_is_kept,
    add_what_is_trained,
    given,
    new_parser,
    refuse_without_effect,
)

Updates = Literal["Asynchronous", "Synchronous"]
UPDATES: tuple[Updates, ...] = ("Asynchronous", "Synchronous")


@dataclass(frozen=True, kw_only=True)
class ServerOptions(options.TrainingOptions):
    """The user's choices; see `parse`. Workers read the data."""

    updates: Updates


def parse(arguments: list[str] | None, program: str, description: str) -> ServerOptions:
    """Read the command line; a usage message ends the process if it is wrong."""
    parser = new_parser(program, description)
    what = add_what_is_trained(parser, MODELS)
    what.add_argument(
        "--augment", action=argparse.BooleanOptionalAction, default=False, help="shift and mirror pictures"
    )

    how = parser.add_argument_group("how")
    updates = os.environ.get(contract.ENV_UPDATES)
    how.add_argument(
        "--updates",
        choices=UPDATES,
        default=updates if updates in UPDATES else UPDATES[0],
        help=f"each worker for itself, or all together; the default is {contract.ENV_UPDATES}",
    )
    how.add_argument("--batch-size", type=positive(int), default=64, help="examples a step of each worker")
    how.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd", help="the update rule")
    how.add_argument("--lr", type=positive(float), default=0.02, help="learning rate")
    how.add_argument("--momentum", type=not_negative(float), default=0.9, help="for sgd")

    add_warmup(how)
    add_schedule(how, default="constant")
    add_penalties(how, weight_decay=0.0)

    parser.set_defaults(scale_lr=False, global_batch_size=None, log_steps=None, async_save=True)
    parser.set_defaults(amp=False, data_workers=0, grad_accumulation=1, sync_batchnorm=False)
    add_what_is_kept(parser, checkpoint_seconds=60.0, log_seconds=5.0)
    parsed = parser.parse_args(arguments)
    refuse_without_effect(parsed, parser.get_default, parser.error)
    if parsed.warmup_start is not None and parsed.warmup_start > parsed.lr:
        parser.error(
            f"--warmup-start={parsed.warmup_start:g} is above --lr={parsed.lr:g}, the learning rate at the end of "
            "the warm-up: give a lower --warmup-start, or leave the option out"
        )
    return ServerOptions(**given(parsed, ServerOptions))
