"""A script that takes its world from the command line: --master_ip, --num_nodes and --rank."""

import argparse
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--master_ip", required=True)
parser.add_argument("--master_port", default=os.environ.get("MASTER_PORT", "29500"))
parser.add_argument("--num_nodes", type=int, required=True)
parser.add_argument("--rank", type=int, required=True)
args = parser.parse_args()

dist.init_process_group(
    "gloo",
    init_method=f"tcp://{args.master_ip}:{args.master_port}",
    world_size=args.num_nodes,
    rank=args.rank,
)
slope = torch.zeros(1)
data = torch.linspace(-1, 1, 256)[args.rank :: args.num_nodes]
for _ in range(30):
    gradient = (2 * (slope * data - 3 * data) * data).mean()
    dist.all_reduce(gradient)
    slope -= 0.5 * gradient / args.num_nodes
print(f"rank {args.rank} of {args.num_nodes}: slope {slope.item():.3f}", flush=True)
dist.destroy_process_group()
