"""A script with Hugging Face's accelerate, for `accelerate launch`, torchrun, or plain Python."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=not torch.cuda.is_available())
data = torch.linspace(-1, 1, 256).unsqueeze(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
batches = DataLoader(TensorDataset(data, 3 * data), batch_size=32, shuffle=True)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
for _ in range(10):
    for inputs, targets in batches:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
slope = accelerator.reduce(accelerator.unwrap_model(model).weight.detach().clone(), reduction="mean")
rank, world = accelerator.process_index, accelerator.num_processes
print(
    f"rank {rank} of {world}, local {accelerator.local_process_index}: slope {slope.item():.3f}", flush=True
)
# A DDP model that outlives its process group may hang: docs/troubleshooting.md.
model, optimizer, batches = accelerator.free_memory(model, optimizer, batches)
accelerator.end_training()
