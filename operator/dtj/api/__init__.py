"""The resource: models, defaults, validation, names and the CRD made from them. Pure."""
