"""Run a job as processes of this machine."""
