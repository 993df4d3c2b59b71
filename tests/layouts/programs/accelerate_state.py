"""Accelerate: `save_state` with names of its own, the last two kept."""

import os

import pace
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

accelerator = Accelerator(
    cpu=True,
    project_config=ProjectConfiguration(
        project_dir=pace.FOLDER, automatic_checkpoint_naming=True, total_limit=2
    ),
)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
root = os.path.join(pace.FOLDER, "checkpoints")
names = sorted(os.listdir(root), key=lambda name: int(name.rpartition("_")[2])) if os.path.isdir(root) else []
first = 1
if names:
    accelerator.load_state(os.path.join(root, names[-1]))
    first = int(names[-1].rpartition("_")[2]) + 2
    accelerator.project_configuration.iteration = first - 1
pace.begins(first)
for epoch in range(first, pace.EPOCHS + 1):
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).pow(2).mean())
        optimizer.step()
    accelerator.save_state()
    pace.saved(epoch)
accelerator.end_training()
