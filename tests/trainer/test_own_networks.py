"""Networks of users: whatever way they are written in, they train, and leave their weights."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import warm
from tests.patience import PATIENCE
from tests.trainer import own_networks
from tests.trainer.horovod_run import MPIRUN
from torch import nn

from dtj.local.store_keeper import free_ports
from dtj_trainer import progress
from dtj_trainer.data.pictures import Pictures, PictureSet
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.torch import saved_model, trial
from dtj_trainer.torch.model import TorchModel
from dtj_trainer.torch.models import build
from dtj_trainer.torch.models.batch_norm import BatchNorm1d, accept_single_values
from dtj_trainer.torch.models.outputs import logits_and_loss
from dtj_trainer.torch.pipeline_model import pieces_of
from dtj_trainer.torch.ranks import TensorRanks
from dtj_trainer.train import smallest_pass
from dtj_trainer.train.options import parse

SHAPE = (1, 8, 8)


def own(name: str) -> str:
    return f"tests.trainer.own_networks:{name}"


def written(folder: Path, name: str) -> dict[str, Any]:
    """Write the model of a network; its model.json."""
    network = build(own(name), SHAPE, 10, [0.3], [0.4])
    with torch.no_grad():
        network.network.layer.bias += 1  # type: ignore[operator, union-attr]
    state = network.state_dict()
    saved_model.write(folder, state, name=own(name), shape=SHAPE, classes=10, facts={"steps": 7})
    loaded = torch.load(folder / "model.pt", weights_only=True)
    # Without dtj: a network of the same class takes what follows `network.`.
    again = own_networks.STYLES[name](1, 10)
    prefix = "network."
    again.load_state_dict(
        {each.removeprefix(prefix): loaded[each] for each in loaded if each.startswith(prefix)}
    )
    torch.testing.assert_close(again.state_dict(), network.network.state_dict(), rtol=0, atol=0)
    named = {file["path"] for file in json.loads((folder / "manifest.json").read_text())["files"]}
    assert {"model.pt", "model.json"} <= named
    assert named == {path.name for path in folder.iterdir()} - {"manifest.json"}
    described: dict[str, Any] = json.loads((folder / "model.json").read_text())
    assert described["steps"] == 7
    return described


def test_a_network_that_cannot_be_exported_leaves_its_weights_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str | None] = []
    monkeypatch.setattr(progress, "exported", told.append)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.pt2").write_text("of an earlier training")
    described = written(tmp_path / "model", "checked")
    error = described["export"]["error"]
    assert error.startswith("torch.export refused the model (model.pt has the weights): own_networks.py:")
    assert "`if torch.isnan(logits).any():`: GuardOnDataDependent" in error
    assert told == [described["export"]["error"]]
    assert not (tmp_path / "model/model.pt2").exists()
    assert list(described["files"]) == ["model.pt"]


def test_a_network_that_asks_for_the_length_of_its_input_is_exported(tmp_path: Path) -> None:
    described = written(tmp_path, "counter")
    assert "export" not in described
    pixels = torch.randint(0, 256, (5, *SHAPE), dtype=torch.uint8)
    exported = saved_model.load_exported(tmp_path)
    with torch.inference_mode():
        for count in (1, 2, 5):
            found = exported(pixels[:count])
            torch.testing.assert_close(found, saved_model.load(tmp_path)(pixels[:count]))


def test_the_weights_are_there_when_the_process_dies_in_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.export, "export", die)
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path, "checked")
    assert {path.name for path in tmp_path.iterdir()} == {"model.pt", "model.json"}
    assert json.loads((tmp_path / "model.json").read_text())["steps"] == 7


def stepped(name: str, *options: str, ranks: TensorRanks | None = None, size: int = 6) -> nn.Module:
    """Make the steps of an epoch of 9 examples; the network."""
    chance = np.random.default_rng(1)
    pictures = Pictures(chance.integers(0, 256, (9, *SHAPE)).astype("u1"), np.arange(9))
    fixed = ["--data=none", "--momentum=0", "--weight-decay=0", f"--model={own(name)}"]
    chosen = parse([*fixed, *options], "program", "", ("cnn",), grad_accumulation=True)
    model = TorchModel(
        chosen, PictureSet(pictures, pictures, 10), torch.device("cpu"), ranks or TensorRanks()
    )
    for step, share in enumerate(Sharding(9, size, rank=0, ranks=1, seed=1).epoch(0)):
        own_ones = pictures.pixels[share.indices], pictures.labels[share.indices]
        model.train(model.prepare(*own_ones), share, 0.01, step)
    return model.network


def test_a_loss_beside_the_logits_counts_once_a_step() -> None:
    plain, whole, in_passes = (
        dict(stepped(name, *options, size=9).named_parameters())["network.layer.weight"]
        for name, *options in (("pair",), ("own_loss", "--batch-size=9"), ("own_loss", "--batch-size=2"))
    )
    torch.manual_seed(1)
    first = dict(build(own("pair"), SHAPE, 10).named_parameters())["network.layer.weight"]
    torch.testing.assert_close(whole - plain, -0.01 * 20 * first, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(in_passes, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [8, 4])
def test_a_batch_norm_of_the_users_takes_a_share_of_one_example(size: int) -> None:
    network = stepped("normed", size=size)
    (layer,) = (each for each in network.modules() if isinstance(each, nn.BatchNorm1d))
    assert type(layer) is BatchNorm1d
    assert all(value.isfinite().all() for value in network.state_dict().values())


@pytest.mark.parametrize(("kind", "axes"), [(nn.BatchNorm1d, 0), (nn.BatchNorm2d, 2), (nn.BatchNorm3d, 3)])
@pytest.mark.parametrize("tracked", [True, False])
def test_one_value_of_a_channel_is_normalized(kind: type[nn.Module], axes: int, tracked: bool) -> None:
    network = nn.Sequential(kind(3, track_running_stats=tracked, affine=tracked))
    accept_single_values(network)
    for count in (1, 0):
        assert network(torch.ones(count, 3, *[1] * axes)).isfinite().all()


@pytest.mark.parametrize("output", [None, (), {"scores": 1}, {"logits": torch.ones(1), "loss": 1.0}])
def test_what_is_no_output_of_a_classifier_is_said(output: object) -> None:
    with pytest.raises(TypeError, match=r"the network('s `loss` has to be a tensor| returned .* logits)"):
        logits_and_loss(output)


def test_what_would_fail_in_the_last_step_fails_at_once() -> None:
    with pytest.raises(
        SystemExit, match=r"a batch of 1, the smallest batch of this training, in pairs: ValueErr"
    ):
        stepped("picky", "--global-batch-size=8", size=8)
    with pytest.raises(SystemExit, match=r"returned logits of shape \(5, 11\) for 5 pictures of 10 classes"):
        stepped("wide", "--global-batch-size=5", "--max-steps=1")


def test_a_weight_without_a_gradient_is_told(caplog: pytest.LogCaptureFixture) -> None:
    stepped("unused")
    assert (
        "no gradient reaches 2 weights of the network, which stay as they are: head.weight, head.b"
        in caplog.text
    )


def test_the_trial_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # Threads of other tests draw from the global generator, for the pauses between their requests.
    chance = random.Random()
    monkeypatch.setattr(own_networks, "random", chance)
    monkeypatch.setattr(smallest_pass, "random", chance)

    def after(tried: list[set[int]]) -> tuple[dict[str, Any], list[Any]]:
        chance.seed(1)
        np.random.seed(1)
        monkeypatch.setattr(trial, "_pass", lambda *given: (tried.append(len(given[1])), made(*given)))
        state = stepped("drawn", "--batch-size=2", size=4).state_dict()
        return state, [chance.random(), np.random.random(), torch.rand(3)]

    made, tried = trial._pass, []
    with_trial, drawn = after(tried)
    assert tried == [1]
    monkeypatch.setattr(trial, "try_passes", lambda *_: None)
    without, drawn_without = after(tried)
    torch.testing.assert_close(with_trial, without, rtol=0, atol=0)
    assert drawn[:2] == drawn_without[:2]
    assert torch.equal(drawn[2], drawn_without[2])


@pytest.mark.parametrize(
    ("examples", "options", "shares", "sizes"),
    [
        (203, ("--batch-size=101",), 1, {1}),
        (203, ("--batch-size=101",), 2, {0, 1}),
        (203, ("--batch-size=101", "--max-steps=1"), 1, {101}),
        (64, ("--batch-size=8", "--grad-accumulation=2"), 2, {8}),
        (60, ("--global-batch-size=20", "--batch-size=4"), 2, {3}),
        (5, ("--batch-size=8",), 1, {5}),
    ],
)
def test_the_smallest_passes(examples: int, options: tuple[str, ...], shares: int, sizes: set[int]) -> None:
    chosen = parse(["--data=none", *options], "program", "", ("cnn",), grad_accumulation=True)
    assert trial.smallest_passes(examples, chosen, shares) == sizes


def test_an_export_that_would_fail_is_told_beside_the_first_steps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    monkeypatch.setattr(progress, "exported", told.append)
    monkeypatch.setattr(trial.sys, "executable", warm.python("torch"))
    for name in ("checked", "counter"):
        trial.try_export(build(own(name), SHAPE, 10), own(name), SHAPE, 10)
    for each in threading.enumerate():
        if each.name == "export-trial":
            each.join(100 * PATIENCE)
    (reason,) = told
    assert reason.startswith("torch.export refused the model (model.pt will have the weights): own_net")
    assert f"the export at the end of this training will fail: {reason}" in caplog.text


def test_stages_need_a_network_that_returns_a_tensor() -> None:
    with pytest.raises(
        SystemExit, match=r"--pipeline-stages: a block of the network returned tuple, but stages"
    ):
        pieces_of(build(own("pair"), SHAPE, 10), SHAPE)


KINDS = ("alone", "ddp", "horovod", "fsdp")
DIAGONAL = [f"{KINDS[1 + number % 2]}:{style}" for number, style in enumerate(own_networks.STYLES)]
MATRIX = [f"{kind}:{style}" for style in own_networks.STYLES for kind in KINDS]


def on_ranks(ranks: int, folder: Path, *cells: str) -> dict[str, dict[str, Any]]:
    """Train networks in so many processes; what became of each cell. See own_checks."""
    (port,) = free_ports(1)
    ours = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ours |= {"OMPI_MCA_mpi_yield_when_idle": "1", "DTJ_ARTIFACTS_URI": ""}
    program = [warm.python("torch"), "-m", "tests.trainer.own_checks", str(folder), *cells]
    done = subprocess.run(
        [*MPIRUN, "-n", str(ranks), *program],
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        timeout=200 * PATIENCE,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {line["cell"]: line for line in lines}
    assert list(found) == list(cells), done.stdout + done.stderr
    return found


@pytest.mark.torch
@pytest.mark.parametrize(
    ("ranks", "cells"),
    [(2, DIAGONAL), *(pytest.param(ranks, MATRIX, marks=pytest.mark.whole) for ranks in (1, 2))],
)
def test_networks_in_twelve_styles_train_on_ranks(tmp_path: Path, ranks: int, cells: list[str]) -> None:
    for cell, found in on_ranks(ranks, tmp_path, *cells).items():
        assert (found["errors"], found.get("steps")) == ([None] * ranks, 3), found
        assert found["finite"], cell
        refused = cell.partition(":")[2] in own_networks.UNEXPORTABLE
        assert (found["exported"], found["export"] is None) == (not refused, not refused), found


@pytest.mark.torch
def test_what_a_pass_changes_is_the_same_on_all_ranks_or_told_at_once(tmp_path: Path) -> None:
    cells = ("ddp:center", "horovod:center", "ddp:unused", "ddp:normed", "ddp:diverging")
    found = on_ranks(2, tmp_path, *cells)
    by_ddp, by_horovod = (found[cell]["state"] for cell in cells[:2])
    for name in ("center", "count"):
        np.testing.assert_allclose(by_ddp[f"network.{name}"], by_horovod[f"network.{name}"], rtol=1e-5)
    kept = (torch.arange(1, own_networks.PIXELS + 1) / 7).tolist()
    assert by_ddp["network.table"] == by_horovod["network.table"] == kept
    assert [found[cell].get("steps") for cell in cells] == [3, 3, 3, 3, None]
    for error in found["ddp:diverging"]["errors"]:
        assert "RanksDiverged: the ranks have different weights: network.layer.bias" in error
    assert not (tmp_path / "ddp:diverging/0/checkpoints").exists()
