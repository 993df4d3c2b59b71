"""The load of `make bench-serve` on a real server, and the ratios of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.serve import ratios, targets
from tests.bench.serve_load import Load, Measured, measure, request
from tests.bench.serve_rounds import KINDS
from tests.bench.targets import verdicts
from tests.trainer.served_models import file_of, pixels, served, write_model


def test_a_load_counts_answers_and_tells_other_ones(tmp_path: Path) -> None:
    with served(f"m={write_model(tmp_path)}") as client:
        picture = request("PUT", "/predictions/m", file_of(pixels(0)))
        found = measure(Load(client.port, 3, [picture, picture], 0.2, 0.1))
        assert found.rate > 0
        assert 0 < found.p50 <= found.p99
        with pytest.raises(RuntimeError, match="404 Not Found"):
            measure(Load(client.port, 1, [request("PUT", "/predictions/other", b"")], 0.2))


def test_each_goal_has_its_ratio() -> None:
    rates = {"session %s, batches of 1": 100.0, "session %s, batches of 32": 200.0}
    for kind in KINDS:
        rates |= {f"dtj %s, {kind}, 32 clients": 190.0, f"dtj %s, {kind}, 1 clients": 90.0}
    for rival, rate in (("litserve", 100.0), ("torchserve", 50.0)):
        rates |= {f"{rival} ({setting}) %s, picture, 32 clients": rate / setting for setting in (1, 2)}
    found = {
        name % model: [Measured(rate, 0.1, 0.2)]
        for name, rate in rates.items()
        for model in ("resnet18-28", "resnet18-32")
    }
    for name, rate in (("dtj", 100.0), ("minimal", 200.0), ("without batches", 50.0)):
        found[f"{name} cnn-28, binary, 32 clients"] = [Measured(rate, 0.1, 0.2)]
    lines = verdicts(targets(), ratios(found))
    assert len(lines) == len(targets())
    assert "dtj/session resnet18-28, json, 32 clients 0.950 ≥0.8 met" in lines
    assert "dtj/session resnet18-32, binary, 1 client 0.900 ≥0.85 met" in lines
    assert "p99 x rate/32 resnet18-28, picture 1.19 ≤1.5 met" in lines
    assert "dtj/torchserve resnet18-28, picture 3.80 ≥2 met" in lines
    assert [line for line in lines if line.endswith("missed")] == [
        "dtj/minimal cnn-28, binary 0.500 ≥0.6 missed"
    ]
