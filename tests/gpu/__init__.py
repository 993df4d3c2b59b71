"""A check of dtj on one GPU, for a bare machine: docs/performance-gpu.md."""
