"""A program that prints nothing and logs by SummaryWriter."""

import time

import torch
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter("runs/example", flush_secs=1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(300):
    loss = model(torch.randn(4, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    writer.add_scalar("Loss/train", loss.item(), step)
    time.sleep(1e6 if step == 250 else 0.2)
