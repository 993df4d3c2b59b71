"""The options of `dtj serve`, which the command and the program that it becomes both have."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dtj_trainer.contract.program_options import Option

ENV_ACCESS = "DTJ_SERVE_TOKEN"
PORT = 8080
MODELS = "NAME=FOLDER|URI"
ABOUT_MODELS = "A name of your choice, and the model or its job."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


OPTIONS = (
    Option("host", str, "127.0.0.1", "ADDRESS", "Address to listen on; 0.0.0.0 for all of IPv4, :: for all."),
    Option("port", int, PORT, "N", "Port to listen on; 0 for any free port.", 0),
    Option("max-batch", int, 32, "N", "The most examples of a batch.", 1),
    Option("max-delay", float, 2.0, "MS", "Milliseconds that a batch waits for more requests.", 0),
    Option("max-waiting", int, 256, "N", "The most requests at the same time; others get 429.", 1),
    Option("max-body", int, 16, "MIB", "The most MiB of a request's body.", 1),
    Option("max-json", int, 4, "MIB", "The most MiB of JSON in a body.", 1),
    Option("max-held", int, 64, "MIB", "The most MiB of all requests at the same time; others get 429.", 1),
    Option("max-pixels", int, 16_000_000, "N", "The most pixels of a picture.", 1),
    Option("max-connections", int, 1000, "N", "The most connections at the same time; others get 503.", 1),
    Option("body-timeout", float, 30.0, "S", "Seconds in which a request has to arrive.", 0.001),
    Option("threads", int, None, "N", "Threads of one run of a model; by default one per processor.", 1),
    Option("workers", int, 1, "N", "Models that run at the same time, --threads each.", 1),
    Option("poll", float, 30.0, "S", "Seconds between checks for a newer version of a model.", 0.001),
    Option("pin", bool, None, "", "Keep the versions that are loaded at the start."),
    Option(
        "token-file", str, None, "FILE", f"File with the bearer token; by default {ENV_ACCESS} is the token."
    ),
)


def named_models(words: Sequence[str]) -> dict[str, str]:
    """Read words NAME=URI; return the URIs by name. Raises ValueError."""
    models: dict[str, str] = {}
    for word in words:
        name, equals, uri = word.partition("=")
        if not equals or not uri or not _NAME.fullmatch(name):
            raise ValueError(
                f"{word!r} has to be NAME=FOLDER or NAME=URI; a name has at most 63 letters, digits, '.', '_' and '-'"
            )
        if name in models:
            raise ValueError(f"two models have the name {name}")
        models[name] = uri
    return models
