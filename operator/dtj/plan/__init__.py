"""From a job to the objects that should exist. Pure: data in, data out."""
