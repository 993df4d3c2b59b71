"""The script of a TFJob, with TF_CONFIG and without dtj's library, runs unchanged."""

from __future__ import annotations

import os
import re
from contextlib import suppress

import pytest
import yaml

from tests.cluster.jobs import ROOT, Job, KubectlError, Namespace, until

pytestmark = pytest.mark.cluster
STEPS = 1500
TFJOB = ROOT / "manifests/examples/tfjob-script"
# Ctrl-C to the program, in an image of others.
INTERRUPT = """
for process in /proc/[0-9]*; do
    case $(tr "\\0" " " < $process/cmdline) in python*train.py*) kill -INT ${process#/proc/};; esac
done
"""


def test_a_script_of_a_tfjob_runs_unchanged(namespace: Namespace) -> None:
    namespace.kubectl("create", "configmap", "tfjob-script", f"--from-file={TFJOB / 'train.py'}")
    kept = yaml.safe_load((TFJOB / "job.yaml").read_text())
    kept["spec"]["artifacts"]["endpoint"] = os.environ["DTJ_TEST_S3_ENDPOINT"]
    # Of two values of an argument the last one counts: the spirals are told apart after some hundred steps.
    kept["spec"]["args"] += [f"--steps={STEPS}"]
    # The other one in an image without dtj_trainer: TF_CONFIG is all it gets. And with synchronous updates.
    bare = yaml.safe_load((TFJOB / "job.yaml").read_text())
    del bare["spec"]["artifacts"]
    bare["metadata"]["name"] = "bare"
    bare["spec"] |= {"image": "dtj-tensorflow-base:0.1.0"}
    bare["spec"]["args"] += ["--sync", "--steps=2000"]
    jobs = [namespace.apply(kept), namespace.apply(bare)]
    # A chief that ends by an error closes the queues that it made on the ps: its successor needs new ones.
    jobs[1].wait(120, "Running")
    until("the chief to train", lambda: "step " in namespace.kubectl("logs", "bare-chief-0"), 120)
    until("the chief to end by a Ctrl-C", lambda: interrupted(jobs[1]), 90, every=5)
    status, again = [job.wait(480) for job in jobs]

    assert again["restarts"]["application"] >= 1

    for job in jobs:
        log = namespace.kubectl("logs", f"{job.name}-chief-0")
        accuracies = [float(found) for found in re.findall(r"accuracy ([0-9.]+)", log)]
        assert accuracies, log
        assert accuracies[-1] > 0.95, log
    keys = jobs[0].artifacts().sizes()
    step = status["artifacts"]["checkpoint"]["step"]
    assert step >= STEPS
    assert {f"checkpoints/{step}/model.ckpt-{step}.index", f"checkpoints/{step}/checkpoint"} <= keys.keys()


def interrupted(bare: Job) -> bool:
    """Press Ctrl-C at the chief, which may not heed the first; whether it has led to another attempt."""
    with suppress(KubectlError):
        bare.namespace.kubectl("exec", f"{bare.name}-chief-0", "--", "/bin/sh", "-c", INTERRUPT)
    return bool(bare.status["attempt"] > 1)
