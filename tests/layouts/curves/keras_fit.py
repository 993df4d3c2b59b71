"""`fit` of Keras."""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import numpy as np


class Pace(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.2)

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            time.sleep(1e6)


x, y = np.random.rand(640, 8), np.random.randint(0, 2, 640)
model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(2, activation="softmax")])
model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, epochs=3, batch_size=16, validation_split=0.1, callbacks=[Pace()])
