"""Fixtures and fakes that unit tests share."""
