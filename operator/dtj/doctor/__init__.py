"""Checks what a job needs of a cluster."""
