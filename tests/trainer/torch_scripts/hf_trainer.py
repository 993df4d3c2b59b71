"""The way of Hugging Face's Trainer with its environment: LOCAL_RANK says whether the run is distributed."""

import contextlib
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist


@dataclass
class TrainingArguments:
    learning_rate: float = 0.5
    num_train_epochs: int = 30
    ddp_backend: str = "gloo"
    local_rank: int = field(default_factory=lambda: int(os.environ.get("LOCAL_RANK", -1)))

    def __post_init__(self):
        if self.local_rank != -1 and not dist.is_initialized():
            dist.init_process_group(backend=self.ddp_backend)

    @property
    def world_size(self):
        return dist.get_world_size() if self.local_rank != -1 else 1

    @property
    def process_index(self):
        return dist.get_rank() if self.local_rank != -1 else 0

    @contextlib.contextmanager
    def main_process_first(self):
        """Let the first process of a host prepare the data."""
        first = self.local_rank in (-1, 0)
        if self.world_size > 1 and not first:
            dist.barrier()
        yield
        if self.world_size > 1 and first:
            dist.barrier()


class Trainer:
    def __init__(self, model, args, train_dataset):
        self.model, self.args, self.train_dataset = model, args, train_dataset

    def train(self):
        args = self.args
        model = torch.nn.parallel.DistributedDataParallel(self.model) if args.local_rank != -1 else self.model
        optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
        inputs = self.train_dataset[args.process_index :: args.world_size]
        for _ in range(args.num_train_epochs):
            loss = torch.nn.functional.mse_loss(model(inputs), 3 * inputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


args = TrainingArguments()
with args.main_process_first():
    dataset = torch.linspace(-1, 1, 256).unsqueeze(1)
trainer = Trainer(torch.nn.Linear(1, 1), args, dataset)
trainer.train()
slope = trainer.model.weight.detach().clone()
if args.local_rank != -1:
    dist.all_reduce(slope)
mean = slope.item() / args.world_size
print(
    f"rank {args.process_index} of {args.world_size}, local {args.local_rank}: slope {mean:.3f}", flush=True
)
if args.local_rank != -1:
    dist.destroy_process_group()
