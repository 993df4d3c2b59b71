"""Access to the Kubernetes API. No other package imports the Kubernetes client."""
