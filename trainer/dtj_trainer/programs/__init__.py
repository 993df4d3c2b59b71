"""Built-in training programs: `python -m dtj_trainer.programs.<name>`."""

import gc

_DEFAULT_THRESHOLD = gc.get_threshold()
# Collect garbage less often: at the default threshold, collections take a fifth of the time of the import of a
# framework.
gc.set_threshold(10_000)


def freeze_imports() -> None:
    """Exclude the imported objects from garbage collection, and restore the default threshold.

    A program calls it once, after its imports. Otherwise a full collection scans a million imported objects, and
    pauses a rank in the middle of a step.
    """
    gc.freeze()
    gc.set_threshold(*_DEFAULT_THRESHOLD)
