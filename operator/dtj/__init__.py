"""dtj: a Kubernetes operator that launches distributed deep-learning training."""
