"""Networks that are divided among ranks: FSDP, tensor parallel, pipelines, and each of them beside data parallel.

* real ranks of gloo compared with one process, and states that go from one division to another: `division_checks`
* the program
* how networks are cut, and what is refused
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import warm
from tests.patience import PATIENCE
from tests.trainer import torch_run
from tests.trainer.idx_files import write_pictures
from tests.trainer.thread_ranks import train

from dtj.local.store_keeper import free_ports
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.torch.models import MODELS, build
from dtj_trainer.torch.models.blocks import blocks_of, tensor_layers_of
from dtj_trainer.torch.pipeline_model import Piece, cut, pieces_of
from dtj_trainer.train.options import parse

pytestmark = pytest.mark.torch

LAYOUTS = {
    *("fsdp", "fsdp with clipping", "fsdp in passes", "fsdp with SyncBatchNorm"),
    *("tensor", "tensor with dropout", "tensor x data", "tensor x fsdp"),
    *("stages", "stages x data", "stages x data with clipping", "stages x fsdp"),
    "chain",
}
RESTORED = {
    *("3: --fsdp", "1: --fsdp", "two pods, 4: --fsdp"),
    *("3: --pipeline-stages=3 --micro-batches=3", "2: --tensor-parallel=2"),
    *("trial: --fsdp", "trial: --tensor-parallel=2", "trial: --pipeline-stages=2 --micro-batches=2"),
}
REFUSED = {
    "ranks": "--tensor-parallel=3: the job has 4 ranks, and needs a multiple of 3",
    "layers": "--tensor-parallel=2: resnet18 has no layer to share",
    "blocks": "division_checks:two has 2 blocks with weights: give at most as many stages",
    "micro batches": "8 examples a step can't fill 9 micro batches: give --micro-batches=8 or fewer",
    "passes": "gives each of 2 pipelines 8 examples a step, which have to be one pass: give --batch-size=8",
    "parts": "does not have all its files in each pod: resume with the options that wrote it",
    "last step": "the network fails for a batch of 1, the smallest batch of this training, in pairs: ValueErr",
    "early": "rank 3 and rank 1 have the same part of the network, but different weights: network.features.0.bias",
    "diverged": "rank 3 and rank 0 have the same part of the network, but different weights",
}


def output_of(command: list[str], ranks: int, folder: Path, **variables: str) -> str:
    """What rank 0 prints."""
    fixed = {
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "DTJ_ARTIFACTS_URI": "",
        "DTJ_ROOT": str(folder),
    }
    outputs = [(folder / f"{rank}.out", folder / f"{rank}.err") for rank in range(ranks)]
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **fixed, **variables, "RANK": str(rank)},
            stdout=out.open("w"),
            stderr=error.open("w"),
        )
        for rank, (out, error) in enumerate(outputs)
    ]
    try:
        codes = [process.wait(250 * PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [0] * ranks, "\n".join(error.read_text() for _, error in outputs)
    return outputs[0][0].read_text()


# A single test: with several workers, each would run all checks.
def test_ranks_are_one_process_and_go_on_from_each_other(tmp_path: Path) -> None:
    command = [
        warm.python("torch"),
        "-m",
        "tests.trainer.division_checks",
        str(tmp_path),
        *map(str, free_ports(4)),
    ]
    found = json.loads(output_of(command, 4, tmp_path))
    assert found["close"].keys() == LAYOUTS
    assert {name: each for name, each in found["close"].items() if each > 1e-5} == {}
    assert found["equal"] == dict.fromkeys(RESTORED, 0.0)
    assert found["messages"].keys() == REFUSED.keys()
    for name, text in REFUSED.items():
        assert text in found["messages"][name]


@pytest.mark.nets
def test_each_network_in_shards_and_in_stages(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    command = [warm.python("torch"), "-m", "tests.trainer.division_nets"]
    found = json.loads(output_of(command, 2, tmp_path, WORLD_SIZE="2", MASTER_PORT=str(port)))
    assert len(found) == 2 * len(MODELS) + 1
    assert {name: each for name, each in found.items() if each > 1e-6} == {}


def test_the_program_goes_on_from_stages_with_shards(tmp_path: Path) -> None:
    data = write_pictures(tmp_path / "data", 88, 21)
    options = ("--global-batch-size=16", "--batch-size=16", "--epochs=3", "--schedule=constant", "--lr=0.02")
    pod = {"DTJ_ROOT": str(tmp_path / "run/0")}
    runs = [
        torch_run.Run(tmp_path / "one", data, 1, *options, "--max-steps=12"),
        torch_run.Run(
            tmp_path / "run",
            data,
            2,
            *options,
            "--max-steps=8",
            "--pipeline-stages=2",
            "--micro-batches=2",
            **pod,
        ),
    ]
    try:
        one, stages = (run.ended() for run in runs)
        end = stages.metrics[-1]
        assert (end["steps"], end["worldSize"]) == (8, 2)
        assert stages.metrics[0]["batchSize"] == 16
        assert "stepSeconds" not in stages.metrics[1]
        shards = torch_run.Run(tmp_path / "run", data, 1, *options, "--max-steps=12", "--fsdp", **pod)
        runs.append(shards)
        assert "resuming from the checkpoint of step 8, epoch 2" in shards.ended().outputs[0]
    finally:
        for run in runs:
            run.kill()
    (end,) = [each for each in shards.metrics if each["kind"] == "end"][1:]
    assert (end["steps"], end["worldSize"]) == (12, 1)
    assert abs(end["accuracy"] - one.metrics[-1]["accuracy"]) < 1e-9
    weights = one.weights
    assert shards.weights.keys() == weights.keys()
    for name, value in shards.weights.items():
        torch.testing.assert_close(value, weights[name], rtol=0, atol=1e-4)


def test_a_whole_network_does_not_go_on_from_shards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DTJ_ROOT", str(tmp_path))
    checkpoints.save(3, lambda folder: (folder / "run.json").write_text("{}") and None)
    with pytest.raises(SystemExit, match="holds shards of a divided network: resume with --fsdp"):
        train(monkeypatch, tmp_path, ranks=1)


def modules_of(block: object) -> Iterable[torch.nn.Module]:
    return block.modules() if isinstance(block, torch.nn.Module) else ()


@pytest.mark.parametrize("name", MODELS)
def test_a_network_is_the_chain_of_its_blocks(name: str) -> None:
    network = build(name, (3, 16, 16), 10).eval()
    values = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, chained = network.network(values), values.clone()
        for block in blocks_of(network.network):
            chained = block(chained)
    assert torch.equal(chained, expected)
    pieces = pieces_of(network.train(), (3, 16, 16))
    assert all(module.training for piece in pieces for block in piece.blocks for module in modules_of(block))
    for stages in (2, 4):
        shares = cut(pieces, stages, (3, 16, 16))
        assert [each for share in shares for each in share.blocks] == blocks_of(network.network)
        assert (shares[0].takes, shares[-1].gives) == ((3, 16, 16), (10,))
        assert [each.gives for each in shares[:-1]] == [each.takes for each in shares[1:]]


def test_the_network_of_the_documentation_says_how_it_is_divided() -> None:
    page = (Path(__file__).parents[2] / "docs/model-parallel.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/model-parallel.md", "exec"), names)
    network = names["Wide"](1, 10)
    values = expected = torch.rand(2, 1, 28, 28)
    for block in blocks_of(network):
        values = block(values)
    assert torch.equal(values, network(expected))
    assert tensor_layers_of(network) == {"first": "column", "second": "row"}


def test_stages_have_about_the_same_work() -> None:
    def stages(*work: int, into: int) -> list[int]:
        blocks = [Piece((torch.nn.Identity(),) * each, each, (each,)) for each in work]
        return [len(each.blocks) for each in cut(blocks, into, (1, 1, 1))]

    assert stages(1, 2, 3, 4, 5, 6, into=3) == [6, 9, 6]
    assert stages(9, 1, 1, 1, into=2) == [9, 3]
    assert stages(1, 1, 1, into=3) == [1, 1, 1]
    chance = np.random.default_rng(1)
    for _ in range(20):
        work = chance.integers(1, 9, 7).tolist()
        best = min(
            max(sum(work[:a]), sum(work[a:b]), sum(work[b:])) for a in range(1, 6) for b in range(a + 1, 7)
        )
        assert max(stages(*work, into=3)) == best
    with pytest.raises(ValueError, match="2 blocks can't be cut into 3 stages"):
        stages(1, 1, into=3)


def test_which_networks_have_layers_to_share() -> None:
    def shared(side: int) -> set[str]:
        with torch.device("meta"):
            return {name for name in MODELS if tensor_layers_of(build(name, (3, side, side), 10).network)}

    assert shared(32) == {"cnn"}
    assert shared(64) == {"cnn", "vgg16", "vgg16_bn"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--tensor-parallel=2 --pipeline-stages=2", "can't be combined: use one of them"),
        (
            "--micro-batches=4",
            "--micro-batches has an effect only with --pipeline-stages: give both",
        ),
        ("--pipeline-stages=4 --micro-batches=3", "give at least as many as --pipeline-stages=4"),
        (
            "--pipeline-stages=2 --grad-accumulation=2",
            "--grad-accumulation does not go with --pipeline-stages",
        ),
        ("--pipeline-stages=2 --skip-corrupt", "--skip-corrupt does not go with --pipeline-stages"),
        ("--tensor-parallel=2 --skip-corrupt", "--skip-corrupt does not go with --tensor-parallel"),
        ("--pipeline-stages=2 --sync-batchnorm", "--sync-batchnorm does not go with --pipeline-stages"),
        ("--fsdp --compile", "--compile does not go with --fsdp: leave --compile out"),
        ("--tensor-parallel=2 --amp-dtype=float16", "does not go with --tensor-parallel: use bfloat16"),
        ("--fsdp --channels-last", "--channels-last does not go with --fsdp: leave --channels-last out"),
        ("--pipeline-stages=0", "0 must be more than 0"),
    ],
)
def test_what_a_divided_network_lacks_is_refused(
    capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    flags = {"grad_accumulation": True, "sync_batchnorm": True, "pytorch": True, "division": True}
    with pytest.raises(SystemExit, match="2"):
        parse(options.split(), "program", "", MODELS, **flags)
    assert message in " ".join(capsys.readouterr().err.split())
