"""Refuses options that would have no effect beside the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def refuse_without_effect(
    chosen: argparse.Namespace, default: Callable[[str], object], refuse: Callable[[str], object]
) -> None:
    """Call `refuse` with what is wrong and what would be right, if an option is given that changes nothing.

    `default` returns the default of an option by its name in `chosen`. An option that has its default's value is not
    told from one that was not given.
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
                f"--{name.replace('_', '-')} has an effect with {needed} alone: give that, or leave it out"
            )
    if chosen.global_batch_size:
        whole = "--global-batch-size is the whole step, and --lr its rate, whatever the number of ranks and passes"
        for name in ("grad_accumulation", "scale_lr"):
            if given(name) and getattr(chosen, name):
                option = f"--{name.replace('_', '-')}"
                refuse(f"{option} has no effect beside --global-batch-size: {whole}: leave one of them out")
    if chosen.warmup_start is not None and chosen.warmup_epochs == 0:
        refuse("--warmup-start has no effect with --warmup-epochs=0: give a longer warm-up, or leave it out")
    if getattr(chosen, "amp_dtype", None) and chosen.amp is False:
        refuse("--amp-dtype has no effect with --no-amp: leave one of them out")
