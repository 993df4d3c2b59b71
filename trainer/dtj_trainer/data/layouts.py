"""Names of the files of published data sets. Standard library only: `dtj-launch` reads this module too."""

from __future__ import annotations

MNIST = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
"""Pictures and labels of each split. Fashion-MNIST, KMNIST and EMNIST's splits use the same names."""


def mnist_files() -> list[list[str]]:
    """Return the accepted names of each file: gzipped, else raw. See `staging.stage`."""
    return [[f"{name}.gz", name] for names in MNIST.values() for name in names]
