"""The form of the Fashion-MNIST example of Kubeflow's PyTorchJob: WORLD_SIZE and RANK, and a backend by name."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn, optim

WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))
RANK = int(os.environ.get("RANK", 0))


def should_distribute():
    return dist.is_available() and WORLD_SIZE > 1


def is_distributed():
    return dist.is_available() and dist.is_initialized()


def main():
    parser = argparse.ArgumentParser(description="A straight line, as PyTorch MNIST Example")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--backend",
        default=dist.Backend.GLOO,
        choices=[dist.Backend.GLOO, dist.Backend.NCCL, dist.Backend.MPI],
    )
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    if should_distribute():
        print(f"Using distributed PyTorch with {args.backend} backend")
        dist.init_process_group(backend=args.backend)

    data = torch.linspace(-1, 1, 256).unsqueeze(1)[RANK::WORLD_SIZE]
    target = 3 * data
    model = nn.Linear(1, 1)
    if is_distributed():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = optim.SGD(model.parameters(), lr=args.lr)
    for _ in range(args.epochs):
        for batch, wanted in zip(data.split(args.batch_size), target.split(args.batch_size), strict=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), wanted)
            loss.backward()
            optimizer.step()
    slope = next(model.parameters()).detach().clone()
    if is_distributed():
        dist.all_reduce(slope)
    print(f"rank {RANK} of {WORLD_SIZE}: slope {slope.item() / WORLD_SIZE:.3f}", flush=True)
    if is_distributed():
        del model  # A DDP model that outlives its process group may hang: docs/troubleshooting.md.
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
