"""Pure tests: no network, no root."""
