"""Runs a job as processes of this machine."""
