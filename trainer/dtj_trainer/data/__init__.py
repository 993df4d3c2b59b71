"""Data sets: fetched to the pod once, read, and distributed among the ranks."""
