"""Compute the status and the next actions of a job from its spec and its observed state. All functions are pure."""
