"""The validating webhook: `kubectl apply` refuses a job with faults that the schema cannot express."""
