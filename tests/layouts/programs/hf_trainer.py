"""Hugging Face Trainer: a checkpoint an epoch, the last two kept, and the best one, which is an early one."""

import os

import pace
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint


class Examples(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        return {"input_ids": torch.randint(0, 100, (8,), generator=generator), "labels": number % 2}


class Pace(TrainerCallback):
    def on_save(self, args, state, control, **_):
        pace.saved(round(state.epoch))


class WorseAndWorse(Trainer):
    def evaluate(self, *args, **kwargs):
        metrics = super().evaluate(*args, **kwargs)
        metrics["eval_loss"] = float(self.state.global_step)
        return metrics


torch.manual_seed(0)
config = BertConfig(
    vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)
arguments = TrainingArguments(
    pace.FOLDER,
    num_train_epochs=pace.EPOCHS,
    save_strategy="epoch",
    eval_strategy="epoch",
    load_best_model_at_end=True,
    metric_for_best_model="eval_loss",
    greater_is_better=False,
    report_to="none",
    use_cpu=True,
    save_total_limit=2,
)
trainer = WorseAndWorse(
    model=BertForSequenceClassification(config),
    args=arguments,
    train_dataset=Examples(),
    eval_dataset=Examples(),
    callbacks=[Pace()],
)
last = get_last_checkpoint(pace.FOLDER) if os.path.isdir(pace.FOLDER) else None
steps = 16 // (8 * arguments.world_size)
pace.begins(int(last.rpartition("-")[2]) // steps + 1 if last else 1)
trainer.train(resume_from_checkpoint=last)
print(f"best {os.path.basename(trainer.state.best_model_checkpoint)}", flush=True)
