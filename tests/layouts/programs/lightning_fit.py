"""Lightning: the two newest checkpoints, and a link to the last one."""

import os

import lightning
import pace
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        loss = self.line(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


class Pace(Callback):
    def on_train_epoch_start(self, trainer, module):
        epoch = trainer.global_step // trainer.num_training_batches
        if not hasattr(self, "first"):
            self.first = epoch
            pace.begins(epoch + 1)
        elif epoch > self.first:
            pace.saved(epoch)

    def on_train_end(self, trainer, module):
        pace.saved(trainer.max_epochs)


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=8)
checkpoint = ModelCheckpoint(monitor="step", mode="max", save_top_k=2, save_last="link")
trainer = lightning.Trainer(
    max_epochs=pace.EPOCHS,
    accelerator="cpu",
    devices=1,
    num_nodes=int(os.environ.get("WORLD_SIZE", "1")),
    strategy="ddp" if "WORLD_SIZE" in os.environ else "auto",
    default_root_dir=pace.FOLDER,
    callbacks=[checkpoint, Pace()],
    enable_progress_bar=False,
    enable_model_summary=False,
)
links = [os.path.join(folder, name) for folder, _, names in os.walk(pace.FOLDER) for name in names]
last = max((path for path in links if path.endswith("last.ckpt")), key=os.path.getmtime, default=None)
trainer.fit(Line(), data, ckpt_path=last)
