"""Unit tests without network and without root."""
