"""Trained models over HTTP: the export to ONNX, and the server. Nothing else of this package imports this part."""
