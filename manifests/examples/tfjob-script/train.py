"""A script as people wrote them for Kubeflow's TFJob: it knows TF_CONFIG and nothing of dtj.

Between-graph replication in the style of TensorFlow 1: every worker and the chief run this loop, variables lie on the
ps, the chief writes checkpoints and goes on from them. Learns to tell the arms of two spirals apart.
"""

import argparse
import json
import os

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()


def spirals(examples, seed):
    """Points of two spirals, float32 [examples, 2], and their arms, int64 [examples]."""
    rng = np.random.default_rng(seed)
    arm = rng.integers(0, 2, examples)
    turn = rng.uniform(0.25, 1.5, examples) * np.pi
    angle = turn + np.pi * arm
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1) / 4.7
    return (points + rng.normal(0, 0.01, points.shape)).astype(np.float32), arm


def dense(inputs, size, name, activation):
    """A layer whose variables lie on the ps."""
    weights = tf.get_variable(
        f"{name}/weights", [inputs.shape[1], size], initializer=tf.glorot_uniform_initializer(seed=1)
    )
    return activation(
        inputs @ weights + tf.get_variable(f"{name}/bias", [size], initializer=tf.zeros_initializer())
    )


def main():
    """One replica, whichever TF_CONFIG says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--sync", action="store_true")
    flags = parser.parse_args()

    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    task, cluster = config["task"], tf.train.ClusterSpec(config["cluster"])
    server = tf.train.Server(cluster, job_name=task["type"], task_index=task["index"])
    if task["type"] == "ps":
        server.join()

    is_chief = task["type"] == "chief"
    device = tf.train.replica_device_setter(
        worker_device=f"/job:{task['type']}/task:{task['index']}", cluster=cluster
    )
    with tf.device(device):
        step = tf.train.get_or_create_global_step()
        points = tf.placeholder(tf.float32, [None, 2])
        arms = tf.placeholder(tf.int64, [None])
        hidden = dense(dense(points, 64, "first", tf.nn.tanh), 64, "second", tf.nn.tanh)
        logits = dense(hidden, 2, "last", tf.identity)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=arms, logits=logits))
        right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), arms), tf.float32))
        optimizer = tf.train.AdamOptimizer(0.005)
        hooks = [tf.train.StopAtStepHook(last_step=flags.steps)]
        if flags.sync:
            replicas = cluster.num_tasks("worker") + 1
            optimizer = tf.train.SyncReplicasOptimizer(
                optimizer, replicas_to_aggregate=replicas, total_num_replicas=replicas
            )
            hooks.append(optimizer.make_session_run_hook(is_chief))
        train = optimizer.minimize(loss, global_step=step)

        # Sharded, as a session makes it of itself, each ps would write its own part on its own disk.
        saver = tf.train.Saver(sharded=False)

    x, y = spirals(20_000, seed=task["index"] + 10 * is_chief)
    test_x, test_y = spirals(2_000, seed=99)
    rng = np.random.default_rng(0)
    told = 0
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=is_chief,
        checkpoint_dir=flags.model_dir,
        scaffold=tf.train.Scaffold(saver=saver),
        hooks=hooks,
        save_checkpoint_steps=500,
        save_summaries_steps=None,
        stop_grace_period_secs=3,
    ) as session:
        while not session.should_stop():
            batch = rng.integers(0, len(x), 64)
            _, now, cost = session.run([train, step, loss], {points: x[batch], arms: y[batch]})
            if is_chief and now - told >= 500:
                told = now
                accuracy = session.run_step_fn(
                    lambda step_context: step_context.session.run(right, {points: test_x, arms: test_y})
                )
                print(f"step {now}: loss {cost:.4f}, accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
