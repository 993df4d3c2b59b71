"""PyTorch: models, ranks, precision, and the final model."""
