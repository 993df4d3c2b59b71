"""A script that starts the ranks of its host itself, by torch.multiprocessing.spawn, and joins them by env://.

RANK is the number of the host, as PyTorchJob sets it, and WORLD_SIZE the number of all ranks.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(local_rank, node, per_node):
    rank = node * per_node + local_rank
    os.environ["RANK"] = str(rank)
    dist.init_process_group("gloo", init_method="env://")
    world = dist.get_world_size()
    slope = torch.zeros(1)
    data = torch.linspace(-1, 1, 256)[rank::world]
    for _ in range(30):
        gradient = (2 * (slope * data - 3 * data) * data).mean()
        dist.all_reduce(gradient)
        slope -= 0.5 * gradient / world
    print(f"rank {rank} of {world}, local {local_rank}: slope {slope.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nproc", type=int, default=2)
    args = parser.parse_args()
    mp.spawn(train, nprocs=args.nproc, args=(int(os.environ["RANK"]), args.nproc))
