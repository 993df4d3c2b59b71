"""Trained models over HTTP: the export to ONNX, and the server. Nothing else of this package imports this part."""

import os

# onnxruntime sends telemetry to its vendor, and writes an identifier into the home folder, unless the variable is set
# before the import of onnxruntime.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
