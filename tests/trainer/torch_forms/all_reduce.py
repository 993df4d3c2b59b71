"""A script that knows nothing of dtj: each rank adds its number to a sum of all ranks, over gloo."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor(rank)
dist.all_reduce(total)
node = os.environ.get("GROUP_RANK", os.environ["RANK"])
# One call: the ranks of a node share a pipe.
sys.stdout.write(f"rank {rank} of {world} on node {node}: sum {int(total)}, arguments {sys.argv[1:]}\n")
sys.stdout.flush()
dist.destroy_process_group()
