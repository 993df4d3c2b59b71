"""`dtj new`: a job file from a few answers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dtj.api.errors import Unusable
from dtj.api.job_file import read_job_file
from dtj.api.shown import enumerated
from dtj.api.strategies import RULES
from dtj.cli.job_files import STANDARD_INPUT
from dtj.cli.options import RegistryOption
from dtj.cli.terminal import echo, errors, output
from dtj.views.new_job_file import Answers, job_text

# The questions of `dtj new`: the option, the text, and the field of the job that the answer sets.
_QUESTIONS = (
    ("name", "Name of the job", "metadata.name"),
    ("strategy", f"Strategy: {enumerated(RULES, 'or')}", "spec.strategy"),
    ("image", "Container image", "spec.image"),
    ("command", "Program of each replica", "spec.command"),
    ("workers", "Workers", "spec.replicaSpecs.worker.replicas"),
    ("ps", "Parameter servers", "spec.replicaSpecs.ps.replicas"),
    ("gpus", "GPUs of each worker", "spec.replicaSpecs.worker.gpus"),
    ("data", "Data set, s3://bucket/prefix (empty: none)", "spec.data.uri"),
    ("artifacts", "Bucket for artifacts, s3://bucket/prefix (empty: nothing is kept)", "spec.artifacts.uri"),
    ("endpoint", "URL of an S3-compatible store (empty: AWS)", "spec.artifacts.endpoint"),
    ("secret", "Secret with the credentials (empty: service account)", "spec.artifacts.secretName"),
)
_NEEDED = ("name", "strategy", "command")
_NUMBERS = ("workers", "ps", "gpus")


def new(
    name: Annotated[str | None, typer.Argument(help="Name of the job.")] = None,
    strategy: Annotated[
        str | None, typer.Option(metavar="|".join(RULES), help="How the processes train together.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="Container image; default: the strategy's.")] = None,
    registry: RegistryOption = None,
    command: Annotated[
        str | None, typer.Option(help='Program with its arguments, e.g. "python train.py --epochs=3".')
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Number of workers.")] = None,
    ps: Annotated[int | None, typer.Option(help="Number of parameter servers.")] = None,
    evaluator: Annotated[
        bool, typer.Option("--evaluator", help="Add an evaluator (ParameterServer).")
    ] = False,
    gpus: Annotated[int | None, typer.Option(help="GPUs of each worker.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set: s3://bucket/prefix.")] = None,
    artifacts: Annotated[
        str | None, typer.Option(help="Where checkpoints and the model go: s3://bucket/prefix.")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="URL of an S3-compatible store; default: AWS.")] = None,
    secret: Annotated[str | None, typer.Option(help="Secret with the S3 credentials.")] = None,
    output_file: Annotated[
        Path | None,
        typer.Option("--output", help="File to write, - for standard output; default: NAME.yaml."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing; use defaults for missing options.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a job file with comments; on a terminal, ask for missing options.

    ```
    dtj new
    dtj new mnist --strategy Horovod --command "python train.py" --workers 4 --gpus 1 --yes
    dtj new mnist --registry registry.example.com/dtj
    dtj new mnist --strategy ParameterServer --ps 2 --yes --output - | dtj validate -
    ```
    """
    role_options = [option for option, is_set in (("ps", ps is not None), ("evaluator", evaluator)) if is_set]
    strategy = _strategy(strategy, role_options)
    options: dict[str, Any] = {
        "name": name, "strategy": strategy, "image": image, "command": command, "workers": workers, "ps": ps,
        "gpus": gpus, "data": data, "artifacts": artifacts, "endpoint": endpoint, "secret": secret,
    }  # fmt: skip
    answers = replace(
        Answers(),
        evaluator=evaluator,
        registry=registry or "",
        **{k: v for k, v in options.items() if v is not None},
    )
    missing = [option for option, value in options.items() if value is None]
    # Refuse an existing file before any question.
    if (name or output_file) and not force and (path := output_file or Path(f"{name}.yaml")).exists():
        raise _already_exists(path)
    if not yes:
        answers = _ask_missing(answers, missing)
    try:
        text = job_text(answers)
    except ValueError as error:
        raise Unusable(f"--command: {error}") from None
    faults = read_job_file(text, "job").faults
    if faults:
        raise Unusable("; ".join(f"{_option_name(fault.field)}: {fault.message}" for fault in faults))
    _write(output_file or Path(f"{answers.name}.yaml"), text, force=force)


def _strategy(name: str | None, role_options: list[str]) -> str | None:
    """Return the name of a strategy as in RULES, whatever its case; without a name, the first that has all the roles.

    Return None without a name and without options. Raises Unusable for an unknown name, or if the strategy lacks the
    role of an option.
    """
    matching = [strategy for strategy, rules in RULES.items() if all(map(rules.role_of_option, role_options))]
    if name is None:
        return matching[0] if role_options and matching else None
    known = next((strategy for strategy in RULES if strategy.lower() == name.lower()), None)
    if known is None:
        raise Unusable(f"--strategy must be {enumerated(RULES, 'or')}, got {name}")
    if known not in matching:
        raise Unusable(f"--{role_options[0]} needs --strategy {' or '.join(matching)}")
    return known


def _option_name(field: str) -> str:
    """Return the option of the command line that sets a field of the job."""
    option = next((option for option, _, target in _QUESTIONS if target == field), None)
    if option is None:
        return field
    return "NAME" if option == "name" else f"--{option}"


def has_terminal() -> bool:
    """Return whether a person can answer questions on the terminal."""
    return sys.stdin.isatty()


def _ask_missing(answers: Answers, missing: list[str]) -> Answers:
    if not has_terminal():
        unasked = ["NAME" if option == "name" else f"--{option}" for option in _NEEDED if option in missing]
        if unasked:
            raise Unusable(
                f"not given: {', '.join(unasked)}; without a terminal, dtj can't ask for missing options",
                "give these options, or --yes to take the defaults",
            )
        return answers
    for option, question, field in _QUESTIONS:
        if option in missing and _applies(option, answers):
            answers = _answer(answers, option, question, field)
    return answers


def _applies(option: str, answers: Answers) -> bool:
    """Return whether a question makes sense after the answers so far."""
    if option in ("workers", "ps"):
        return RULES[answers.strategy].role_of_option(option) is not None
    return bool(answers.artifacts) or option not in ("endpoint", "secret")


def _answer(answers: Answers, option: str, question: str, field: str) -> Answers:
    """Ask until the answer has no fault. The operator's own checks find the faults."""
    while True:
        default = answers.shown(option)
        text = typer.prompt(question, default=default, show_default=bool(default), err=True).strip()
        try:
            tried = replace(answers, **{option: _value(option, text)})
            messages = [f.message for f in read_job_file(job_text(tried), "job").faults if f.field == field]
        except (ValueError, Unusable) as error:
            messages = [str(error)]
        if not messages:
            return tried
        errors.print(messages[0], style="red")


def _value(option: str, text: str) -> Any:
    if option == "strategy":
        if (strategy := _strategy(text, [])) is None:
            raise ValueError(f"{text!r} is not a strategy")
        return strategy
    if option in _NUMBERS:
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
    return text


def _write(path: Path, text: str, *, force: bool) -> None:
    if str(path) == STANDARD_INPUT:
        echo(text, end="")
        return
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise _already_exists(path) from None
    except OSError as error:
        raise Unusable(f"{path} can't be written: {error.strerror}") from None
    output.print(
        f"{path} is written. Next: dtj validate {path}, dtj run {path} or dtj submit {path}",
    )


def _already_exists(path: Path) -> Unusable:
    return Unusable(f"{path}: the file exists already", "--force replaces it, --output names another file")
