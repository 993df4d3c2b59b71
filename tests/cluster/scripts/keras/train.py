"""Keras with MultiWorkerMirroredStrategy as TensorFlow's tutorial has it."""

import json
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 3 has no fit() on several workers.

import numpy as np
import tensorflow as tf
from tabulate import tabulate

strategy = tf.distribute.MultiWorkerMirroredStrategy()
config = json.loads(os.environ["TF_CONFIG"])
inputs = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((inputs, inputs.sum(axis=1, keepdims=True))).repeat().batch(32)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
history = model.fit(data, epochs=2, steps_per_epoch=8, verbose=2)
print(tabulate([history.history["loss"]]))
rank, workers = config["task"]["index"], len(config["cluster"]["worker"])
print(f"rank {rank} of {workers} done, loss {history.history['loss'][-1]:.4f}")
