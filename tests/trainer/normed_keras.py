"""A small Keras network with BatchNormalization, for tests of resumes and of batch statistics."""

import keras


def network(channels: int, classes: int) -> keras.Model:
    """See `dtj_trainer.train.own_model`."""
    return keras.Sequential(
        [
            keras.layers.Conv2D(8, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(classes),
        ]
    )
