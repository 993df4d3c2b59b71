"""Training on parameter servers with TensorFlow: the work of each role of such a job."""

import os

# TensorFlow reads the variable at its import. Hide TensorFlow's verbose C++ logs: errors also become exceptions.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
