"""Keras on TensorFlow: models, GPUs, and the final model."""
