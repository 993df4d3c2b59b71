"""The loop and the prints of accelerate's examples/nlp_example.py, with a small network in place of BERT."""

import time

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
examples = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
loader = torch.utils.data.DataLoader(examples, batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(10):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.3)
    right = float((model(x).argmax(1) == y).float().mean())
    accelerator.print(f"epoch {epoch}:", {"accuracy": right, "loss": loss.item()})
    if epoch == 5:
        time.sleep(1e6)
