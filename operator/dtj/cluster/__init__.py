"""The Kubernetes API: the only package that imports its client."""
