"""The commands of `dtj` by name; a command's module is imported only when that command is called.

To import the modules of all commands takes a second of CPU. The help of `dtj` and the shell's completion need only
the commands' names and first lines, which are here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

HELP_NAMES = ["--help", "-h"]

_WITHOUT = "Without a cluster"
_JOBS = "Jobs of a cluster"
_RESULTS = "Results, of a cluster's job or of a run of this machine"
_OTHERS = "Others"


class Listed(NamedTuple):
    """What is known of a command before its module is imported."""

    module: str
    """In dtj.cli."""
    line: str
    """The first line of the command's own help."""
    panel: str
    """Under which heading the help of `dtj` lists the command."""


COMMANDS = {
    "new": Listed(
        "files", "Write a job file with comments; on a terminal, ask for what is not given.", _WITHOUT
    ),
    "validate": Listed("files", "Print every fault of job files, each with its line.", _WITHOUT),
    "plan": Listed(
        "files",
        "Show what the operator would make of a job file: pods, hostfile, TF_CONFIG, environment.",
        _WITHOUT,
    ),
    "run": Listed("run", "Run a job file on this machine; `dtj submit` runs it on a cluster.", _WITHOUT),
    "convert": Listed("convert", "Make DistributedTrainingJobs of Kubeflow's TFJobs and MPIJobs.", _WITHOUT),
    "doctor": Listed(
        "doctor", "Check a cluster and, with a job file, whether that job can run there.", _JOBS
    ),
    "submit": Listed("jobs", "Run a job file on the cluster; `dtj run` runs it on this machine.", _JOBS),
    "list": Listed("jobs", "List jobs with their phase, progress and rate.", _JOBS),
    "status": Listed(
        "status",
        "Show a job's progress, replicas and nodes, conditions, restarts, failure and last events.",
        _JOBS,
    ),
    "logs": Listed(
        "logs",
        "Print what the ranks and replicas of a job printed, all together, each in its colour.",
        _JOBS,
    ),
    "events": Listed("jobs", "Print the events of a job and its pods.", _JOBS),
    "top": Listed(
        "top", "Show the CPU and memory that each replica of a job uses, beside what it may use.", _JOBS
    ),
    "wait": Listed("jobs", "Wait until a job has succeeded, or for another condition.", _JOBS),
    "suspend": Listed("jobs", "End a job's pods as soon as their checkpoint is in the bucket.", _JOBS),
    "resume": Listed("jobs", "Let a suspended job go on.", _JOBS),
    "scale": Listed("jobs", "Change the number of replicas.", _JOBS),
    "delete": Listed("jobs", "Delete jobs with their pods.", _JOBS),
    "report": Listed(
        "report",
        "Tables and pictures of one or many runs: rates, times, accuracy, speed-up, cost.",
        _RESULTS,
    ),
    "artifacts": Listed(
        "artifacts",
        "List and copy what a job left in its bucket: checkpoints, model, logs, metrics.",
        _RESULTS,
    ),
    "tensorboard": Listed(
        "tensorboard",
        "Serve TensorBoard on this machine, with the event files of a job's bucket.",
        _RESULTS,
    ),
    "crd": Listed("files", "Print the CustomResourceDefinition, as YAML.", _OTHERS),
    "version": Listed("about", "Print the version of dtj.", _OTHERS),
    "help": Listed("about", "Show the help of dtj or of a command.", _OTHERS),
}


class Commands(TyperGroup):
    """The group of all commands. Until a command is called, a command without options stands for it."""

    def __init__(self, **settings: Any) -> None:
        settings["commands"] = {
            name: TyperCommand(name, help=listed.line, rich_help_panel=listed.panel)
            for name, listed in COMMANDS.items()
        }
        super().__init__(**settings)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """As typer does it, with the command itself in the place of the one that stood for it."""
        name, found, rest = super().resolve_command(ctx, args)
        if name:
            found = load(name)
            _leave_out_types_of_flags(found, ctx)
        return name, found, rest

    def get_params(self, ctx: Any) -> list[Any]:
        """The options of `dtj` itself."""
        found = super().get_params(ctx)
        for param in found:
            _leave_out_type_of_flag(param)
        return found


def load(name: str) -> Any:
    """Import a command's module; gives the command."""
    module = import_module(f"dtj.cli.{COMMANDS[name].module}")
    alone = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False)
    alone.add_typer(module.app)
    return typer.main.get_group(alone).commands[name]


def _leave_out_types_of_flags(command: Any, ctx: Any) -> None:
    for param in command.get_params(ctx):
        _leave_out_type_of_flag(param)
    for inner in getattr(command, "commands", {}).values():
        _leave_out_types_of_flags(inner, ctx)


def _leave_out_type_of_flag(param: Any) -> None:
    """A flag takes no value: the help shows no type of a value."""
    if getattr(param, "is_flag", False):
        param.metavar = ""
