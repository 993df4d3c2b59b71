"""The real cluster that tests run on: `up`, `down`, `images`, `install`.

Tests need nothing from here but the exports that `python -m tests.cluster.up` prints.
"""
