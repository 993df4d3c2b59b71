"""Training on parameter servers with TensorFlow: what each role of such a job does."""

import os

# Read when TensorFlow is loaded: its C++ side says a lot, and what matters comes as exceptions.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
