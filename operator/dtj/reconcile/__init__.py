"""Desired against observed: the actions that bring them together, and the queue that carries them out."""
