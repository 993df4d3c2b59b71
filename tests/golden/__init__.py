"""The plans of example jobs, as committed files."""
