"""Ignite: the two newest checkpoints, and the best one with its score in the name."""

import glob
import os

import pace
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver, global_step_from_engine

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def step(engine, batch):
    optimizer.zero_grad()
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


engine = Engine(step)
state = {"model": model, "optimizer": optimizer, "engine": engine}
saver = DiskSaver(pace.FOLDER, create_dir=True, require_empty=False)
newest = Checkpoint(state, saver, n_saved=2, global_step_transform=global_step_from_engine(engine))
best = Checkpoint(
    {"model": model},
    saver,
    n_saved=1,
    filename_prefix="best",
    score_function=lambda engine: -engine.state.output,
    score_name="loss",
    global_step_transform=global_step_from_engine(engine),
)
engine.add_event_handler(Events.EPOCH_COMPLETED, newest)
engine.add_event_handler(Events.EPOCH_COMPLETED, best)
engine.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: pace.saved(engine.state.epoch))
found = glob.glob(os.path.join(pace.FOLDER, "checkpoint_*.pt"))
if found:
    last = max(found, key=os.path.getmtime)
    Checkpoint.load_objects(state, torch.load(last, weights_only=False))
engine.add_event_handler(Events.STARTED, lambda engine: pace.begins(engine.state.epoch + 1))
engine.run(torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=8), max_epochs=pace.EPOCHS)
