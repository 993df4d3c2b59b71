"""A whole Kubernetes on this machine, from Debian's packages and Debian's Kubernetes source."""
