"""The validating webhook: what code can say of a job is said when it is applied."""
