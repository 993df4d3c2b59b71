"""FSDP2 and torch.distributed.checkpoint: a shard of each rank, `.metadata` by rank 0, and a pointer."""

import os
import re

import pace
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
os.makedirs(pace.FOLDER, exist_ok=True)
first, pointer = 1, os.path.join(pace.FOLDER, "latest")
if os.path.exists(pointer):
    with open(pointer) as content:
        name = content.read()
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=os.path.join(pace.FOLDER, name))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    first = int(re.findall(r"\d+", name)[0]) + 1
pace.begins(first)
for epoch in range(first, pace.EPOCHS + 1):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save(
        {"model": weights, "optimizer": moments}, checkpoint_id=os.path.join(pace.FOLDER, f"step-{epoch}")
    )
    if pace.RANK == 0:
        with open(f"{pointer}.tmp", "w") as content:
            content.write(f"step-{epoch}")
        os.replace(f"{pointer}.tmp", pointer)
    pace.saved(epoch)
dist.destroy_process_group()
