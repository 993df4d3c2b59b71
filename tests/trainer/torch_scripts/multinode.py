"""The form of PyTorch's tutorial `multinode.py`: torchrun's variables, a Trainer, a snapshot."""

import argparse
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.distributed import all_reduce, destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class MyTrainDataset(Dataset):
    def __init__(self, size):
        x = torch.linspace(-1, 1, size).unsqueeze(1)
        self.data = list(zip(x, 3 * x, strict=True))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


class Trainer:
    def __init__(self, model, train_data, optimizer, snapshot_path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.device = f"cuda:{self.local_rank}" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device)
        self.train_data, self.optimizer, self.snapshot_path = train_data, optimizer, snapshot_path
        self.epochs_run = 0
        if Path(snapshot_path).exists():
            snapshot = torch.load(snapshot_path, map_location=self.device)
            self.model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
        self.model = DDP(self.model)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self.train_data.sampler.set_epoch(epoch)
            for source, targets in self.train_data:
                self.optimizer.zero_grad()
                loss = F.mse_loss(self.model(source.to(self.device)), targets.to(self.device))
                loss.backward()
                self.optimizer.step()
            if self.local_rank == 0 and epoch % 2 == 0:
                snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
                torch.save(snapshot, self.snapshot_path)


def main(total_epochs, batch_size, snapshot_path):
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    dataset = MyTrainDataset(256)
    train_data = DataLoader(
        dataset, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(dataset)
    )
    model = torch.nn.Linear(1, 1)
    trainer = Trainer(model, train_data, torch.optim.SGD(model.parameters(), lr=0.5), snapshot_path)
    trainer.train(total_epochs)
    sum_of_slopes = trainer.model.module.weight.detach().clone()
    all_reduce(sum_of_slopes)
    world = int(os.environ["WORLD_SIZE"])
    slope = sum_of_slopes.item() / world
    print(f"rank {trainer.global_rank} of {world}, local {trainer.local_rank}: slope {slope:.3f}", flush=True)
    del trainer  # A DDP model that outlives its process group may hang: docs/troubleshooting.md.
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("--batch_size", default=32, type=int)
    parser.add_argument("--snapshot_path", default="snapshot.pt")
    args = parser.parse_args()
    main(args.total_epochs, args.batch_size, args.snapshot_path)
