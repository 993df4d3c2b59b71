"""Keras: a file an epoch with its loss in the name, and BackupAndRestore, whose folder goes at the end."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import numpy as np
import pace


class Pace(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if not hasattr(self, "first"):
            self.first = epoch
            pace.begins(epoch + 1)

    def on_epoch_end(self, epoch, logs=None):
        pace.saved(epoch + 1)


keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
callbacks = [
    keras.callbacks.ModelCheckpoint(os.path.join(pace.FOLDER, "weights.{epoch:02d}-{loss:.2f}.keras")),
    keras.callbacks.BackupAndRestore(os.path.join(pace.FOLDER, "backup")),
    Pace(),
]
model.fit(x, x.sum(1), epochs=pace.EPOCHS, verbose=0, callbacks=callbacks)
