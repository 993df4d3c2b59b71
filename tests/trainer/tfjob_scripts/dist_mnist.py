"""Between-graph replication as in TFJob's dist-mnist: TF_CONFIG names a master, or worker 0 is the chief."""

import argparse
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()


def main():
    """Fit a line with asynchronous updates; the chief saves checkpoints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_dir", required=True)
    parser.add_argument("--train_steps", type=int, default=200)
    flags = parser.parse_args()

    config = json.loads(os.environ["TF_CONFIG"])
    task, cluster = config["task"], tf.train.ClusterSpec(config["cluster"])
    server = tf.train.Server(cluster, job_name=task["type"], task_index=task["index"])
    if task["type"] == "ps":
        server.join()

    is_chief = task["type"] == "master" or ("master" not in config["cluster"] and task["index"] == 0)
    worker = f"/job:{task['type']}/task:{task['index']}"
    with tf.device(tf.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        step = tf.train.get_or_create_global_step()
        x = tf.placeholder(tf.float32, [None])
        y = tf.placeholder(tf.float32, [None])
        slope = tf.get_variable("slope", [], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(slope * x - y))
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        saver = tf.train.Saver(sharded=False)

    rng = np.random.default_rng(task["index"])
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=is_chief,
        checkpoint_dir=flags.train_dir,
        scaffold=tf.train.Scaffold(saver=saver),
        hooks=[tf.train.StopAtStepHook(last_step=flags.train_steps)],
        save_checkpoint_steps=100,
        save_summaries_steps=None,
    ) as session:
        while not session.should_stop():
            points = rng.uniform(-1, 1, 32)
            _, now, learned = session.run([train, step, slope], {x: points, y: 3 * points})
    print(f"{task['type']} {task['index']} of {sorted(config['cluster'])}: step {now}, slope {learned:.2f}")


if __name__ == "__main__":
    main()
