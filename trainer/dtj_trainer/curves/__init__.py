"""The curves of any program: rows of metrics.jsonl from what a program reports, logs to TensorBoard, or prints.

`dtj-launch` calls it, in the pod of rank 0. The built-in programs write their rows themselves.
"""
