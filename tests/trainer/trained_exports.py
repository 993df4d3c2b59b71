"""Networks that are trained for some steps on Fashion-MNIST and exported, and the comparison of their answers.

`python -m tests.trainer.trained_exports NAME DATA FOLDER whole|quarters` trains, exports and compares a network of
Keras.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.trainer.idx_files import FASHION_MNIST, NAMES, idx_bytes

from dtj_trainer.data.pictures import load_pictures
from dtj_trainer.serving.loaded_model import load
from dtj_trainer.serving.places import FolderPlace
from dtj_trainer.train.export_process import export_model

BATCHES = (1, 2, 7, 32)
TRAINING, TEST, STEPS, BATCH = 640, 1000, 20, 32
TOLERANCE = 1e-4
CLEAR = 1e-3
"""Where the two best logits differ by more than this, both forms name the same class."""


def rate_of(name: str) -> float:
    """The learning rate. VGG16 without normalization forgets the pictures after steps with a higher one."""
    return 1e-4 if name == "vgg16" else 1e-3


def write_some_of_fashion_mnist(folder: Path) -> Path:
    """The first pictures of each split."""
    whole = load_pictures(str(FASHION_MNIST))
    folder.mkdir(parents=True)
    for names, split, count in ((NAMES[:2], whole.train, TRAINING), (NAMES[2:], whole.test, TEST)):
        some = split.read(np.arange(count))
        (folder / names[0]).write_bytes(idx_bytes(some.pixels[:, 0]))
        (folder / names[1]).write_bytes(idx_bytes(some.labels.astype("u1")))
    return folder


def compare(
    folder: Path, answer: Callable[[np.ndarray], np.ndarray], pixels: np.ndarray, *, whole: bool
) -> float:
    """Assert that a model's folder answers as `answer` in batches of all sizes; the largest difference.

    `whole`: all pictures in batches of each size; else a quarter of them in each, which takes a quarter of the time.
    """
    model = load(FolderPlace(folder), 1)
    (name,) = [each.name for each in model.inputs]
    largest = 0.0
    for number, batch in enumerate(BATCHES):
        some = pixels if whole else np.array_split(pixels, len(BATCHES))[number]
        cut = [some[start : start + batch] for start in range(0, len(some), batch)]
        wanted = np.concatenate([answer(each) for each in cut])
        found = np.concatenate([model.run({name: each})[0] for each in cut])
        np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE, err_msg=f"batch {batch}")
        ordered = np.sort(wanted, axis=1)
        clear = ordered[:, -1] - ordered[:, -2] > CLEAR
        assert (found.argmax(1) == wanted.argmax(1))[clear].all(), f"batch {batch}"
        assert clear.any()
        largest = max(largest, float(np.abs(found - wanted).max()))
    return largest


def main(name: str, data: str, folder: Path, *, whole: bool) -> None:
    """Train, export and compare a network of Keras."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import keras
    import tensorflow as tf

    from dtj_trainer.keras import models, saved_model

    pictures = load_pictures(data)
    shape = (28, 28, 1)
    network = models.build(name, shape, pictures.classes, 1)
    before = [np.array(each) for each in network.trainable_variables]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(rate_of(name)), loss)
    some = pictures.train.read(np.arange(STEPS * BATCH))
    network.fit(some.pixels.transpose(0, 2, 3, 1).astype("f"), some.labels, BATCH, epochs=1, verbose=0)
    after = network.trainable_variables
    assert all(np.abs(one - np.array(other)).max() > 0 for one, other in zip(before, after, strict=True))
    saved_model.write(
        folder, network, name=name, shape=shape, classes=pictures.classes, facts={"steps": STEPS}
    )
    export_model(folder, lambda: False)
    saved = keras.models.load_model(folder / saved_model.MODEL)
    test = pictures.test.read(np.arange(TEST)).pixels.transpose(0, 2, 3, 1).astype("f")
    answer = tf.function(lambda some: saved(some, training=False), reduce_retracing=True, autograph=False)
    found = compare(folder, lambda some: np.asarray(answer(some)), test, whole=whole)
    print("largest difference", found)


if __name__ == "__main__":
    main(*sys.argv[1:3], Path(sys.argv[3]), whole=sys.argv[4] == "whole")
