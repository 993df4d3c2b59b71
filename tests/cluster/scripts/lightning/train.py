"""Lightning on two nodes."""

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Sum(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    L.seed_everything(0)
    inputs = torch.randn(256, 4)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=16)
    trainer = L.Trainer(max_epochs=2, devices=1, num_nodes=2, strategy="ddp", enable_progress_bar=False)
    trainer.fit(Sum(), loader)
    print(
        f"rank {trainer.global_rank} of {trainer.world_size} done, loss {trainer.callback_metrics['train_loss']:.4f}"
    )
