"""The models: shapes, sizes, normalisation, seeds, and settings that cannot be built."""

from __future__ import annotations

import pytest
import torch

from dtj_trainer.torch.models import MODELS, build

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8)])
def test_logits_for_each_class(name: str, shape: tuple[int, int, int]) -> None:
    model = build(name, shape, 7).eval()
    logits = model(torch.zeros((2, *shape), dtype=torch.uint8))
    assert logits.shape == (2, 7)
    assert logits.dtype == torch.float32


@pytest.mark.parametrize(("name", "parameters"), [("cnn", 105_866), ("resnet18", 11_172_810)])
def test_sizes(name: str, parameters: int) -> None:
    assert sum(p.numel() for p in build(name, (1, 28, 28), 10).parameters()) == parameters


def test_pixels_are_normalised_inside() -> None:
    model = build("cnn", (1, 28, 28), 10, [0.5], [0.25]).eval()
    pixels = torch.randint(0, 256, (4, 1, 28, 28), dtype=torch.uint8)
    torch.testing.assert_close(model(pixels), model.network((pixels / 255.0 - 0.5) / 0.25))
    assert {"mean", "deviation"} <= model.state_dict().keys()


def test_same_seed_same_weights() -> None:
    def weights() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return list(build("resnet18", (3, 32, 32), 10).parameters())

    assert all(torch.equal(left, right) for left, right in zip(weights(), weights(), strict=True))


def test_what_can_not_be_built() -> None:
    with pytest.raises(ValueError, match="no model 'vgg': there are cnn, resnet18"):
        build("vgg", (1, 28, 28), 10)
    with pytest.raises(ValueError, match="at least 8x8, these are 4x28"):
        build("cnn", (1, 4, 28), 10)


def test_a_single_picture_trains_where_it_leaves_one_value_a_channel() -> None:
    model = build("resnet18", (1, 8, 8), 10).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.full((1, 1, 8, 8), 7, dtype=torch.uint8)).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert all(p.grad is not None for p in model.parameters())
    after = model.state_dict()
    counted = [int(value) for name, value in after.items() if name.endswith("num_batches_tracked")]
    assert set(counted) == {1}, "the same on all ranks"
    first, last = "network.body.1.running_var", "network.body.10.body.4.running_var"
    assert not torch.equal(after[first], before[first])
    assert torch.equal(after[last], before[last])
