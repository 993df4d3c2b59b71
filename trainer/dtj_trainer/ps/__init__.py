"""Training on parameter servers with TensorFlow: the work of each role of such a job."""

import os

# TensorFlow reads the variable when it is loaded. Its C++ logs are verbose, and errors also come as exceptions.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
