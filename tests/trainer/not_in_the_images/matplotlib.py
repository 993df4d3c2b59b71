"""Hides matplotlib from a program: the images have no matplotlib, and Keras takes a second to import matplotlib."""

raise ModuleNotFoundError("the images have no matplotlib")
