"""How fast things are, measured side by side in one run. Nothing of it is installed or imported elsewhere."""
