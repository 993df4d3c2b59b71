"""A complete Kubernetes cluster on this machine, from Debian's packages and Debian's Kubernetes source."""
