"""The Python SDK: jobs of a cluster, from a program."""
