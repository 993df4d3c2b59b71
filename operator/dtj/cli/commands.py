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
    """The description of a command, which exists before the module of the command is imported."""

    module: str
    """Name of the module in dtj.cli."""
    line: str
    """The first line of the command's own help."""
    panel: str
    """The heading under which the help of `dtj` lists the command."""


COMMANDS = {
    "new": Listed(
        "file_commands", "Write a job file with comments; on a terminal, ask for missing options.", _WITHOUT
    ),
    "validate": Listed("file_commands", "Print every fault of job files, each with its line.", _WITHOUT),
    "plan": Listed(
        "file_commands",
        "Show what the operator would create for a job file: pods, hostfile, TF_CONFIG, environment.",
        _WITHOUT,
    ),
    "run": Listed(
        "run",
        "Run a script, a folder or a job file on this machine; `dtj submit` runs it on a cluster.",
        _WITHOUT,
    ),
    "convert": Listed(
        "convert", "Convert Kubeflow's jobs and torchx's dist.ddp to DistributedTrainingJobs.", _WITHOUT
    ),
    "data": Listed("data", "Write data sets as shards with an index, and check data sets.", _WITHOUT),
    "doctor": Listed(
        "doctor", "Check a cluster and, with a job file, whether that job can run there.", _JOBS
    ),
    "submit": Listed(
        "submit",
        "Run a script, a folder or a job file on the cluster; `dtj run` runs it on this machine.",
        _JOBS,
    ),
    "defaults": Listed(
        "defaults", "Show what jobs of scripts and folders get where no option says it.", _JOBS
    ),
    "list": Listed("listing", "List jobs with their state, progress, rate and GPUs.", _JOBS),
    "status": Listed(
        "status",
        "Show a job's progress, replicas and nodes, conditions, restarts, failure and last events.",
        _JOBS,
    ),
    "logs": Listed(
        "logs",
        "Print the output of all ranks and replicas of a job, each in its own colour.",
        _JOBS,
    ),
    "events": Listed("jobs", "Print the events of a job and its pods.", _JOBS),
    "top": Listed(
        "top", "Show the CPU and memory that each replica of a job uses, beside its limits.", _JOBS
    ),
    "wait": Listed("jobs", "Wait until a job has succeeded, or for another condition.", _JOBS),
    "suspend": Listed("jobs", "End a job's pods as soon as their checkpoint is in the bucket.", _JOBS),
    "resume": Listed(
        "jobs", "Continue a suspended job from its newest checkpoint, or go back to an earlier one.", _JOBS
    ),
    "scale": Listed("jobs", "Change the number of replicas.", _JOBS),
    "delete": Listed("jobs", "Delete jobs with their pods.", _JOBS),
    "ui": Listed("ui", "Show the jobs of a cluster or of this machine in the browser.", _JOBS),
    "report": Listed(
        "report",
        "Make tables and pictures of one or many runs: rates, times, accuracy, speed-up, cost.",
        _RESULTS,
    ),
    "artifacts": Listed(
        "artifacts",
        "List and copy the files of a job in its bucket: checkpoints, model, logs, metrics.",
        _RESULTS,
    ),
    "tensorboard": Listed(
        "tensorboard",
        "Serve TensorBoard on this machine, with the event files of a job's bucket.",
        _RESULTS,
    ),
    "export": Listed("export", "Convert a trained model to ONNX, for `dtj serve`.", _RESULTS),
    "serve": Listed("serve", "Serve trained models over HTTP, on this machine or in a pod.", _RESULTS),
    "crd": Listed("file_commands", "Print the CustomResourceDefinition, as YAML.", _OTHERS),
    "version": Listed("about", "Print the version of dtj.", _OTHERS),
    "help": Listed("about", "Show the help of dtj or of a command.", _OTHERS),
}


class Commands(TyperGroup):
    """The group of all commands. A placeholder without options represents a command until the command is called."""

    def __init__(self, **settings: Any) -> None:
        settings["commands"] = {
            name: TyperCommand(name, help=listed.line, rich_help_panel=listed.panel)
            for name, listed in COMMANDS.items()
        }
        super().__init__(**settings)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return what typer resolves, with the imported command instead of its placeholder."""
        name, command, rest = super().resolve_command(ctx, args)
        if name:
            command = load(name)
            _leave_out_types_of_flags(command, ctx)
        return name, command, rest

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of `dtj` itself."""
        params = super().get_params(ctx)
        for param in params:
            _leave_out_type_of_flag(param)
        return params


def load(name: str) -> Any:
    """Import the module of a command, and return the command."""
    module = import_module(f"dtj.cli.{COMMANDS[name].module}")
    wrapper = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False)
    wrapper.add_typer(module.app)
    return typer.main.get_group(wrapper).commands[name]


def _leave_out_types_of_flags(command: Any, ctx: Any) -> None:
    for param in command.get_params(ctx):
        _leave_out_type_of_flag(param)
    for inner in getattr(command, "commands", {}).values():
        _leave_out_types_of_flags(inner, ctx)


def _leave_out_type_of_flag(param: Any) -> None:
    """Remove the type of a value from the help of a flag: a flag takes no value."""
    if getattr(param, "is_flag", False):
        param.metavar = ""
