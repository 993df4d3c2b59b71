"""A program that prints nothing and logs by `tf.summary`."""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf

writer = tf.summary.create_file_writer("logs/train", flush_millis=1000)
weight = tf.Variable(5.0)
for step in range(300):
    with tf.GradientTape() as tape:
        loss = weight * weight
    weight.assign_sub(0.01 * tape.gradient(loss, weight))
    with writer.as_default():
        tf.summary.scalar("loss", loss, step=step)
    time.sleep(1e6 if step == 250 else 0.2)
