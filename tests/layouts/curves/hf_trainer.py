"""Hugging Face's Trainer."""

import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Examples(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, number):
        return {"x": torch.randn(8), "labels": torch.tensor(number % 2)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 2)

    def forward(self, x, labels):
        logits = self.line(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Pace(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        time.sleep(1e6 if state.global_step == 60 else 0.3)


arguments = TrainingArguments(
    "/tmp/out",
    num_train_epochs=3,
    per_device_train_batch_size=8,
    logging_steps=10,
    eval_strategy="epoch",
    report_to=[],
    save_strategy="no",
    use_cpu=True,
)
Trainer(Model(), arguments, train_dataset=Examples(), eval_dataset=Examples(), callbacks=[Pace()]).train()
