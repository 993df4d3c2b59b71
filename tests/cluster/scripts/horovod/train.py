"""Horovod as its documentation has it."""

import horovod.torch as hvd
import torch
from tabulate import tabulate

hvd.init()
torch.manual_seed(0)
inputs = torch.randn(256, 4)[hvd.rank() :: hvd.size()]
targets = inputs.sum(dim=1, keepdim=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
losses = []
for _ in range(20):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(hvd.allreduce(loss.detach()).item())
if hvd.rank() == 0:
    print(tabulate([losses[::5]]))
print(f"rank {hvd.rank()} of {hvd.size()} done, loss {losses[-1]:.4f}")
