"""Options that divide a network among ranks: shards of the weights, parts of layers, or stages of a pipeline."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer.train.argument_types import positive

if TYPE_CHECKING:
    from collections.abc import Callable


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
        """The ranks that compute the same examples together. Only one of both options is more than 1."""
        return self.tensor_parallel * self.pipeline_stages

    @property
    def passes_of_stages(self) -> int:
        """The micro batches of a step. Four for each stage leave few gaps (Huang et al., 2018, "GPipe")."""
        return self.micro_batches or 4 * self.pipeline_stages

    def check_ranks(self, ranks: int) -> None:
        """End the process unless so many ranks can divide the network in this way."""
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
            "--micro-batches divides the steps of a pipeline: give --pipeline-stages as well, or leave it out",
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
    """Refuse what is wrong where several ranks compute the same examples."""
    if chosen.skip_corrupt:
        refuse(
            f"--skip-corrupt does not go with {option}: one rank might skip an example that another rank reads. "
            "Leave it out; `dtj data check` finds corrupt examples"
        )
    if chosen.sync_batchnorm:
        refuse(f"--sync-batchnorm does not go with {option}: leave it out, or use --fsdp alone")


def _refuse_divided(chosen: argparse.Namespace, refuse: Callable[[str], object]) -> None:
    """Refuse what no divided network has."""
    if chosen.compile:
        refuse("--compile does not go with a divided network: leave it out")
    if chosen.amp_dtype == "float16":
        refuse("--amp-dtype=float16 does not go with a divided network: use bfloat16")
    if chosen.channels_last and (chosen.fsdp or chosen.pipeline_stages > 1):
        refuse("--channels-last does not go with --fsdp and --pipeline-stages: leave it out")
