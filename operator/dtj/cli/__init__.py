"""The `dtj` command."""
