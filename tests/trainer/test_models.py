"""The models: shapes, sizes, normalisation, seeds, and settings that cannot be built."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn

from dtj_trainer.torch.models import MODELS, build
from dtj_trainer.torch.models.form import NetworkForm, form_of

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8)])
def test_logits_for_each_class(name: str, shape: tuple[int, int, int]) -> None:
    with torch.device("meta"):
        logits = build(name, shape, 7).eval()(torch.zeros((2, *shape), dtype=torch.uint8))
    assert logits.shape == (2, 7)
    assert logits.dtype == torch.float32


TORCHVISION = {
    "resnet18": (11_689_512, "867b8d8ae95f5a28c42c5b8a8409d5869ea42922a87e779dc263f79d0c746ff2"),
    "vgg16": (138_357_544, "26a44a8d3cab16c67a2e446a90410ce627919f48ca28949d4a95f218ccda926f"),
    "vgg16_bn": (138_365_992, "e238651c9f050805932a596a13886843e14bd40069f6b2214ab574efceb94dc5"),
    "mobilenet_v2": (3_504_872, "b37e2a9130e6341bc6158c07707da3e63bbde46fdbffb1ff4d42ea45ff281e7e"),
    "shufflenet_v2": (2_278_604, "7fc67b378ffa2a4d80b3825a7f416e2d0392f5b102819f6966c5c7b64ba69bcd"),
    "densenet121": (7_978_856, "d9126905d0ec5cf693d4f6632265cb5bed0fe1ac92f10f1a6dc842c5f6046dc7"),
}
"""Of torchvision 0.28.0's networks: `num_params` of the weights IMAGENET1K_V1, and `digest` of the state."""


def digest(network: nn.Module) -> str:
    """Return the sha256 of the names and shapes of a state."""
    lines = (f"{name} {list(value.shape)}" for name, value in sorted(network.state_dict().items()))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@pytest.mark.parametrize("side", [100, 224])
@pytest.mark.parametrize("name", TORCHVISION)
def test_published_weights_load(name: str, side: int) -> None:
    with torch.device("meta"):
        network = build(name, (3, side, side), 1000).network
        logits = network.eval()(torch.zeros((2, 3, side, side)))
    assert (sum(p.numel() for p in network.parameters()), digest(network)) == TORCHVISION[name]
    assert logits.shape == (2, 1000)


SMALL = {
    "cnn": 136_874,
    "resnet18": 11_173_962,
    "vgg16": 14_719_818,
    "vgg16_bn": 14_728_266,
    "mobilenet_v2": 2_236_682,
    "shufflenet_v2": 1_263_854,
    "densenet121": 6_956_426,
}
"""Parameters for CIFAR-10: the published form's, with the last layer for 10 classes and the stem for small pictures.

resnet18 and vgg16_bn have as many as in github.com/kuangliu/pytorch-cifar.
"""


@pytest.mark.parametrize("name", MODELS)
def test_parameters_for_small_pictures(name: str) -> None:
    with torch.device("meta"):
        network = build(name, (3, 32, 32), 10).network
    assert sum(p.numel() for p in network.parameters()) == SMALL[name]


@pytest.mark.parametrize(
    ("shape", "form"),
    [
        ((28, 28), NetworkForm.SMALL),
        ((32, 300), NetworkForm.SMALL),
        ((100, 100), NetworkForm.MEDIUM),
        ((224, 224), NetworkForm.LARGE),
    ],
)
def test_the_shorter_side_decides_the_form(shape: tuple[int, int], form: NetworkForm) -> None:
    assert form_of(*shape) is form


@pytest.mark.parametrize("name", TORCHVISION)
@pytest.mark.parametrize(("side", "rows"), [(32, 4), (100, 7), (224, 7)])
def test_the_last_convolution_sees_rows(name: str, side: int, rows: int) -> None:
    seen = []
    with torch.device("meta"):
        network = build(name, (3, side, side), 10).network.eval()
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_hook(lambda _layer, _given, out: seen.append(out.shape[-1]))
        network(torch.zeros((1, 3, side, side)))
    of_vgg = {32: 2, 100: 6, 224: 14}  # Its last convolutions come before the last pooling.
    assert seen[-1] == (of_vgg[side] if name.startswith("vgg") else rows)


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
    with pytest.raises(ValueError, match="no model 'vgg': there are cnn, resnet18, vgg16, "):
        build("vgg", (1, 28, 28), 10)
    with pytest.raises(ValueError, match="at least 8x8, these are 4x28"):
        build("cnn", (1, 4, 28), 10)


@pytest.mark.parametrize("name", MODELS)
def test_one_picture_or_none_trains_where_it_leaves_one_value_a_channel(name: str) -> None:
    model = build(name, (1, 8, 8), 10).train()
    before = {each: value.clone() for each, value in model.state_dict().items()}
    for count in (0, 1):
        pixels = torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8)
        model(pixels).sum().backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
        after = model.state_dict()
        counted = {int(value) for each, value in after.items() if each.endswith("num_batches_tracked")}
        assert counted <= {count + 1}, "the same on all ranks"
        changed = {each for each, value in after.items() if not torch.equal(value, before[each])}
        assert all(each.endswith("num_batches_tracked") for each in changed) or count
    if name == "resnet18":
        assert "network.bn1.running_var" in changed
        assert "network.layer4.1.bn2.running_var" not in changed


OWN = """
import torch
from torch import nn

def net(channels, classes, width=4):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.Linear(width, classes))

def number(channels, classes):
    return channels * classes

def other(size):
    return net
"""


def test_a_network_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/nets.py").write_text(OWN)
    (tmp_path / "broken_net.py").write_text("import not_installed_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = build("mine.nets:net", (3, 4, 5), 7)
    assert model(torch.zeros((2, 3, 4, 5), dtype=torch.uint8)).shape == (2, 7)
    for path, why in (
        ("mine.nets:missing", "mine.nets has no function missing, only: net, number, other"),
        ("mine.nets:number", "returned int, and has to return a torch.nn.Module"),
        ("mine.nets:other", "has to take the keywords channels and classes"),
        ("mine.absent:net", "there is no module mine.absent: put it into the image"),
        ("absent.nets:net", "there is no module absent: put it"),
        ("mine.nets:", "has to be package.module:factory"),
    ):
        with pytest.raises(ValueError, match=f"--model={path}.*{why}"):
            build(path, (3, 8, 8), 7)
    with pytest.raises(ModuleNotFoundError, match="not_installed_at_all"):
        build("broken_net:net", (3, 8, 8), 7)
