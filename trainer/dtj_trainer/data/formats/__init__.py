"""The formats of pictures with labels that dtj reads."""
