"""On the PYTHONPATH of a program as in an image, which has no matplotlib: Keras would import it, for a second."""

raise ModuleNotFoundError("the images have no matplotlib")
