"""Turns a job into the objects that should exist. Pure: data in, data out."""
