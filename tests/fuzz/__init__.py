"""Fuzz tests: random jobs, from valid to hostile, through everything that validates and runs jobs."""
