"""Lightning with its bar of tqdm."""

import time

import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 2)

    def training_step(self, batch, number):
        loss = torch.nn.functional.cross_entropy(self.line(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        time.sleep(1e6 if self.global_step == 60 else 0.3)
        return loss

    def validation_step(self, batch, number):
        self.log("val_loss", torch.nn.functional.cross_entropy(self.line(batch[0]), batch[1]), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


examples = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randint(0, 2, (256,)))
loader = torch.utils.data.DataLoader(examples, batch_size=8)
lightning.Trainer(
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    accelerator="cpu",
    devices=1,
    num_nodes=1,
    callbacks=[lightning.pytorch.callbacks.TQDMProgressBar()],
).fit(Model(), loader, loader)
