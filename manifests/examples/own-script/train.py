"""A plain Horovod script: it knows MPI ranks and folders, and nothing of Kubernetes, S3 or dtj."""

import argparse
import pathlib

import horovod.torch as hvd
import torch
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


hvd.init()
torch.manual_seed(1)
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())
device = "cuda" if torch.cuda.is_available() else "cpu"

# Two spirals, to be told apart.
angle = torch.linspace(0.5, 9.0, 4000)
spiral = torch.stack([angle * angle.cos(), angle * angle.sin()], dim=1) / 9
points = torch.cat([spiral, -spiral])
labels = torch.cat([torch.zeros(4000), torch.ones(4000)]).long()

# Each rank has its own share, in an order of the epoch's own. The sampler gives all ranks equally many points: a rank
# with fewer steps than the others would leave these waiting for its gradients for ever.
sampler = DistributedSampler(points, num_replicas=hvd.size(), rank=hvd.rank(), seed=1)
batches = DataLoader(TensorDataset(points, labels), batch_size=50, sampler=sampler)

model = torch.nn.Sequential(
    torch.nn.Linear(2, 128),
    torch.nn.Tanh(),
    torch.nn.Linear(128, 128),
    torch.nn.Tanh(),
    torch.nn.Linear(128, 2),
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

state = None
if hvd.rank() == 0:
    saved = sorted(args.checkpoints.glob("epoch-*.pt"), key=lambda path: int(path.stem.split("-")[1]))
    if saved:
        state = torch.load(saved[-1], map_location="cpu")
        print(f"going on from {saved[-1].name}")
# With a name: Horovod calls an object without one by its type, and the other ranks have None.
state = hvd.broadcast_object(state, root_rank=0, name="state")
if state:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
first = state["epoch"] if state else 0
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

for epoch in range(first + 1, args.epochs + 1):
    sampler.set_epoch(epoch)
    for mine, wanted in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(mine.to(device)), wanted.to(device))
        loss.backward()
        optimizer.step()
    # Each rank tests its own share, and each point counts once.
    share = slice(hvd.rank(), None, hvd.size())
    right = (model(points[share].to(device)).argmax(1).cpu() == labels[share]).sum()
    accuracy = hvd.allreduce(right, op=hvd.Sum, name="right").item() / len(points)
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy:.4f}")
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        save(state, args.checkpoints / f"epoch-{epoch}.pt")

if hvd.rank() == 0:
    save(model.state_dict(), args.model / "spirals.pt")
