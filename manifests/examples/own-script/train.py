"""A plain Horovod script: it knows MPI ranks and folders, and nothing of Kubernetes, S3 or dtj."""

import argparse
import pathlib

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--checkpoints", type=pathlib.Path, default="/dtj/checkpoints")
parser.add_argument("--model", type=pathlib.Path, default="/dtj/model")
args = parser.parse_args()

hvd.init()
torch.manual_seed(1)
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())
device = "cuda" if torch.cuda.is_available() else "cpu"

# Two spirals, to be told apart; each rank has its own share.
angle = torch.linspace(0.5, 9.0, 4000)
spiral = torch.stack([angle * angle.cos(), angle * angle.sin()], dim=1) / 9
points = torch.cat([spiral, -spiral])[hvd.rank() :: hvd.size()].to(device)
labels = torch.cat([torch.zeros(4000), torch.ones(4000)])[hvd.rank() :: hvd.size()].long().to(device)

model = torch.nn.Sequential(
    torch.nn.Linear(2, 128),
    torch.nn.Tanh(),
    torch.nn.Linear(128, 128),
    torch.nn.Tanh(),
    torch.nn.Linear(128, 2),
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

first = 0
saved = sorted(args.checkpoints.glob("epoch-*.pt"), key=lambda path: int(path.stem.split("-")[1]))
if saved and hvd.rank() == 0:
    state = torch.load(saved[-1], map_location=device)
    model.load_state_dict(state["model"])
    first = state["epoch"]
    print(f"going on from {saved[-1].name}")
first = hvd.broadcast_object(first, root_rank=0)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

for epoch in range(first + 1, args.epochs + 1):
    for batch in torch.randperm(len(points)).split(50):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(points[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    right = (model(points).argmax(1) == labels).float().mean()
    accuracy = hvd.allreduce(right, name="accuracy").item()
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy:.4f}")
        args.checkpoints.mkdir(parents=True, exist_ok=True)
        torch.save({"epoch": epoch, "model": model.state_dict()}, args.checkpoints / f"epoch-{epoch}.pt")

if hvd.rank() == 0:
    args.model.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.model / "spirals.pt")
