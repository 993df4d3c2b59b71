"""A script that knows nothing of dtj: a small network on Fashion-MNIST by DistributedDataParallel."""

import gzip
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

data, checkpoint = Path(sys.argv[1]), Path(sys.argv[2]) / "newest.pt"
epochs, width = map(int, sys.argv[3:])
gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if gpu else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")


def read(name: str, skip: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(gzip.open(data / name).read(), np.uint8, offset=skip).copy()).to(
        device
    )


splits = {}
for split in ("train", "t10k"):
    pixels = read(f"{split}-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28).float().div_(127.5).sub_(1)
    splits[split] = pixels, read(f"{split}-labels-idx1-ubyte.gz", 8).long()
torch.manual_seed(1)
blocks = [(1, width), (width, 2 * width), (2 * width, 4 * width)]
layers = [
    (nn.Conv2d(*size, 3, padding=1), nn.BatchNorm2d(size[1]), nn.ReLU(), nn.MaxPool2d(2)) for size in blocks
]
net = nn.Sequential(
    *(each for block in layers for each in block), nn.Flatten(), nn.Dropout(0.3), nn.LazyLinear(10)
)
net.to(device)(splits["train"][0][:2])
model = nn.parallel.DistributedDataParallel(net)
x, y = splits["train"]
steps = len(x) // 100 * epochs
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, weight_decay=5e-4, lr=0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, steps)
for step in range(steps):
    chosen = torch.randint(len(x), (100,), device=device)
    pixels = x[chosen].flip(3) if step % 2 else x[chosen]
    with torch.autocast(device.type, torch.bfloat16):
        loss = nn.functional.cross_entropy(model(pixels), y[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
torch.save(net.state_dict(), checkpoint)
net.eval()
with torch.inference_mode():
    right = sum(
        (net(a).argmax(1) == b).sum().item()
        for a, b in zip(*(t.split(500) for t in splits["t10k"]), strict=True)
    )
print(f"accuracy {right / len(splits['t10k'][1]):.4f} on {device.type}", flush=True)
del model
dist.destroy_process_group()
