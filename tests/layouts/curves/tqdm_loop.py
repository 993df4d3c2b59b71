"""A plain loop with tqdm: a bar an epoch, and bars of validation between them."""

import time

import torch
from tqdm import tqdm

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1, 4):
    bar = tqdm(range(200), desc=f"Epoch {epoch}/3")
    for number in bar:
        loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 8)), torch.randint(0, 2, (8,)))
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=loss.item())
        time.sleep(0.05)
        if (epoch, number) == (2, 100):
            time.sleep(1e6)
    for _ in tqdm(range(10), desc="val"):
        time.sleep(0.05)
