"""`python -m tests.trainer.parsed_options JOB=DATA …`: what the programs of jobs make of their arguments and of data.

Prints a line of JSON for each job: the options that its program parsed, and the set that they load from DATA.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import yaml


class Parsed(BaseException):
    """Ends a program once it has read its arguments."""

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.options = options


def options_of(name: str, arguments: Sequence[str]) -> Any:
    program: Any = importlib.import_module(name)
    parse = program.parse

    def parse_and_end(*given: Any, **flags: Any) -> NoReturn:
        raise Parsed(parse(*given, **flags))

    program.parse = parse_and_end
    try:
        program.main([*arguments])
    except Parsed as parsed:
        return parsed.options
    finally:
        program.parse = parse
    raise AssertionError(f"{name} did not read its arguments")


def main() -> None:
    # The programs import Horovod before they read their arguments. An environment has it for one framework at most.
    horovod: Any = ModuleType("horovod")
    horovod.tensorflow = ModuleType("horovod.tensorflow")
    sys.modules |= {"horovod": horovod, "horovod.tensorflow": horovod.tensorflow}
    for word in sys.argv[1:]:
        job, _, data = word.partition("=")
        spec = yaml.safe_load(Path(job).read_text())["spec"]
        options = options_of(spec["command"][-1], [*spec["args"], f"--data={data}"])
        found = options.load()
        loaded = {"shape": found.shape, "classes": found.class_names, "train": len(found.train)}
        print(json.dumps({"options": dataclasses.asdict(options), "loaded": loaded}))


if __name__ == "__main__":
    main()
