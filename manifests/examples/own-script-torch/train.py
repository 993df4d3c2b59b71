"""A plain PyTorch script for torchrun: it knows ranks and folders, and nothing of Kubernetes, S3 or dtj."""

import argparse
import os
import pathlib

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # If DistributedDataParallel imports it, it holds the group until the exit.
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--checkpoints", type=pathlib.Path, default="/dtj/checkpoints")
parser.add_argument("--model", type=pathlib.Path, default="/dtj/model")
args = parser.parse_args()


def save(state: dict, path: pathlib.Path) -> None:
    """Write a file that appears under its name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.tmp")
    torch.save(state, unfinished)
    unfinished.replace(path)


on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)

# Two spirals, which the network learns to tell apart.
angle = torch.linspace(0.5, 9.0, 4000)
spiral = torch.stack([angle * angle.cos(), angle * angle.sin()], dim=1) / 9
points = torch.cat([spiral, -spiral])
labels = torch.cat([torch.zeros(4000), torch.ones(4000)]).long()

# The sampler gives all ranks equally many points, so that all ranks make equally many steps: a rank with more steps
# would wait for ever for the gradients of the others.
sampler = DistributedSampler(points, num_replicas=ranks, rank=rank, seed=1)
batches = DataLoader(TensorDataset(points, labels), batch_size=50, sampler=sampler)

layers = [
    torch.nn.Linear(2, 128),
    torch.nn.Tanh(),
    torch.nn.Linear(128, 128),
    torch.nn.Tanh(),
    torch.nn.Linear(128, 2),
]
model = torch.nn.Sequential(*layers).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

# Rank 0 alone has written the checkpoints, so rank 0 reads the newest one for all ranks.
state = None
if rank == 0:
    saved = sorted(args.checkpoints.glob("epoch-*.pt"), key=lambda path: int(path.stem.split("-")[1]))
    if saved:
        state = torch.load(saved[-1], map_location="cpu")
        print(f"going on from {saved[-1].name}")
shared = [state]
dist.broadcast_object_list(shared, src=0)
state = shared[0]
if state:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
first = state["epoch"] if state else 0
averaged = DistributedDataParallel(model)

for epoch in range(first + 1, args.epochs + 1):
    sampler.set_epoch(epoch)
    for mine, wanted in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(averaged(mine.to(device)), wanted.to(device))
        loss.backward()
        optimizer.step()
    # Each rank tests its own share, and each point counts once.
    share = slice(rank, None, ranks)
    right = (model(points[share].to(device)).argmax(1) == labels[share].to(device)).sum()
    dist.all_reduce(right)
    if rank == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {right.item() / len(points):.4f}")
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        save(state, args.checkpoints / f"epoch-{epoch}.pt")

if rank == 0:
    save(model.state_dict(), args.model / "spirals.pt")
# Free the averaged model before the process group ends: otherwise the process could wait for ever for gloo's threads.
# Gloo's threads must end before Python exits: a thread that waits for Python's lock at the exit aborts the process.
del averaged
dist.destroy_process_group()
