"""Data sets: brought to the pod once, read, and shared out among the ranks."""
