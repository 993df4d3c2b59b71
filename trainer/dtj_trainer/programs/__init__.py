"""Built-in training programs: `python -m dtj_trainer.programs.<name>`."""

import gc

_USUAL = gc.get_threshold()
# The import of a framework makes a million objects and little garbage: at the usual threshold, the collector takes a
# fifth of the time of the import.
gc.set_threshold(10_000)


def imported() -> None:
    """Exempt what the imports made from later collections, which otherwise pause a rank in the midst of a step."""
    gc.freeze()
    gc.set_threshold(*_USUAL)
