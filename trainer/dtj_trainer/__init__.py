"""The code inside a training container: launching, artifacts, data, models and programs."""
