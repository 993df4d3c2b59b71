"""Keras under MultiWorkerMirroredStrategy, as in TFJob's examples: TF_CONFIG names workers alone.

The loop is the script's own: `Model.fit` of Keras 3 does not take the batches of several workers.
"""

import argparse
import json
import os

import numpy as np
import tensorflow as tf


def main():
    """Fit a line with synchronous updates of all workers; the first worker saves the model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_dir", required=True)
    flags = parser.parse_args()

    config = json.loads(os.environ["TF_CONFIG"])
    index, workers = config["task"]["index"], len(config["cluster"]["worker"])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1, use_bias=False)])
        optimizer = tf.keras.optimizers.SGD(0.2)

    points = np.random.default_rng(0).uniform(-1, 1, (256, 1)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((points, 3 * points)).repeat().batch(32)
    batches = iter(strategy.experimental_distribute_dataset(data))

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y)) / workers
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=batch), axis=None)

    for _ in range(90):
        loss = step(next(batches))

    slope = model.get_weights()[0].item()
    print(f"worker {index} of {sorted(config['cluster'])}: {strategy.num_replicas_in_sync} in sync, ", end="")
    print(f"loss {loss:.4f}, slope {slope:.3f}")
    if index == 0:
        model.save(f"{flags.model_dir}/model.keras")


if __name__ == "__main__":
    main()
