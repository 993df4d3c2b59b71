"""Artifacts of a job in S3: clients, checkpoints with a manifest, uploads while a program runs, restore."""
