"""Benchmarks, which compare measurements of one run. No other code imports this package."""
