"""A script with torch.compile and PyTorch's own SummaryWriter."""

import os
from pathlib import Path

import torch
from torch.utils.tensorboard import SummaryWriter

network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
inputs = torch.randn(64, 8)
wanted = network(inputs).detach()
outputs = torch.compile(network)(inputs)
outputs.sum().backward()
with SummaryWriter("/dtj/tensorboard") as writer:
    writer.add_scalar("difference", (outputs - wanted).abs().max().item(), 1)
built = [*Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.so")]
read_only = os.statvfs("/").f_flag & os.ST_RDONLY != 0
equal = torch.allclose(outputs, wanted, atol=1e-5)
print(f"uid {os.getuid()}, read-only root {read_only}, compiled {bool(built)}, equal {equal}")
