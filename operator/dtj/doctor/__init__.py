"""Check whether a cluster can run jobs, and whether it can run a given job."""
