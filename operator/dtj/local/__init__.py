"""Carries a job out as processes of this machine."""
