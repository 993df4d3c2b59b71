"""Networks of users: whatever way they are written in, they train, and leave their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer import own_networks

from dtj_trainer import progress
from dtj_trainer.torch import saved_model
from dtj_trainer.torch.models import build

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
    assert "torch.export refused the model, model.pt has the weights: Guard" in described["export"]["error"]
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
