"""The real cluster for tests: `up`, `down`, `images`, `install`.

Tests need nothing from here but the exports that `python -m tests.cluster.up` prints.
"""
