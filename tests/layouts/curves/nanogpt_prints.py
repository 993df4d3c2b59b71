"""What nanoGPT prints, with a small network in place of GPT."""

import time

import torch

max_iters, eval_interval, log_interval = 300, 50, 10
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
for iter_num in range(max_iters):
    begun = time.time()
    loss = model(torch.randn(4, 8)).pow(2).mean()
    if iter_num % eval_interval == 0:
        print(f"step {iter_num}: train loss {loss.item():.4f}, val loss {loss.item():.4f}", flush=True)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    time.sleep(1e6 if iter_num == 151 else 0.1)
    if iter_num % log_interval == 0:
        dt = time.time() - begun
        print(f"iter {iter_num}: loss {loss.item():.4f}, time {dt * 1000:.2f}ms, mfu -100.00%", flush=True)
