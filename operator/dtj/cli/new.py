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
from dtj.cli.job_text import Answers, job_text
from dtj.cli.terminal import echo, errors, output

# Option, question, and the field of a job that its answer goes to.
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
        str | None, typer.Option(metavar="|".join(RULES), help="How its ranks work together.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="Container image; default: the strategy's.")] = None,
    command: Annotated[
        str | None, typer.Option(help='Program with its arguments, e.g. "python train.py --epochs=3".')
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Number of workers.")] = None,
    ps: Annotated[int | None, typer.Option(help="Number of parameter servers.")] = None,
    evaluator: Annotated[
        bool, typer.Option("--evaluator", help="With an evaluator (ParameterServer).")
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
        bool, typer.Option("--yes", "-y", help="Ask nothing: defaults for what is not given.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write a job file with comments; on a terminal, ask for what is not given.

    ```
    dtj new
    dtj new mnist --strategy Horovod --command "python train.py" --workers 4 --gpus 1 --yes
    dtj new mnist --strategy ParameterServer --ps 2 --yes --output - | dtj validate -
    ```
    """
    asked = [option for option, given in (("ps", ps is not None), ("evaluator", evaluator)) if given]
    strategy = _strategy(strategy, asked)
    given: dict[str, Any] = {
        "name": name, "strategy": strategy, "image": image, "command": command, "workers": workers, "ps": ps,
        "gpus": gpus, "data": data, "artifacts": artifacts, "endpoint": endpoint, "secret": secret,
    }  # fmt: skip
    answers = replace(Answers(), evaluator=evaluator, **{k: v for k, v in given.items() if v is not None})
    missing = [option for option, value in given.items() if value is None]
    if (name or output_file) and not force and (known := output_file or Path(f"{name}.yaml")).exists():
        raise _is_there(known)  # rather than ask for answers in vain
    if not yes:
        answers = _asked(answers, missing)
    try:
        text = job_text(answers)
    except ValueError as error:
        raise Unusable(f"--command: {error}") from None
    wrong = read_job_file(text, "job").faults
    if wrong:
        raise Unusable("; ".join(f"{_given_as(fault.field)}: {fault.message}" for fault in wrong))
    _write(output_file or Path(f"{answers.name}.yaml"), text, force=force)


def _strategy(given: str | None, asked: list[str]) -> str | None:
    """The strategy by its name in any case, or the one that has the roles asked for. Raises Unusable."""
    having = [name for name, rules in RULES.items() if all(map(rules.role_of_option, asked))]
    if given is None:
        return having[0] if asked and having else None
    known = next((name for name in RULES if name.lower() == given.lower()), None)
    if known is None:
        raise Unusable(f"--strategy must be {enumerated(RULES, 'or')}, got {given}")
    if known not in having:
        raise Unusable(f"--{asked[0]} goes with --strategy {' or '.join(having)}")
    return known


def _given_as(field: str) -> str:
    """What a field of the job is called on the command line."""
    option = next((option for option, _, of in _QUESTIONS if of == field), None)
    if option is None:
        return field
    return "NAME" if option == "name" else f"--{option}"


def has_terminal() -> bool:
    """Return whether a person can answer questions on the terminal."""
    return sys.stdin.isatty()


def _asked(answers: Answers, missing: list[str]) -> Answers:
    if not has_terminal():
        unasked = ["NAME" if option == "name" else f"--{option}" for option in _NEEDED if option in missing]
        if unasked:
            raise Unusable(
                f"{', '.join(unasked)} not given, and there is no terminal to ask on",
                "give them, or --yes to take the defaults",
            )
        return answers
    for option, question, field in _QUESTIONS:
        if option in missing and _concerns(option, answers):
            answers = _answer(answers, option, question, field)
    return answers


def _concerns(option: str, answers: Answers) -> bool:
    """Whether a question makes sense after the answers so far."""
    if option in ("workers", "ps"):
        return RULES[answers.strategy].role_of_option(option) is not None
    return bool(answers.artifacts) or option not in ("endpoint", "secret")


def _answer(answers: Answers, option: str, question: str, field: str) -> Answers:
    """Ask until the answer has no fault; the operator's own code says whether it has one."""
    while True:
        default = answers.shown(option)
        said = typer.prompt(question, default=default, show_default=bool(default), err=True).strip()
        try:
            tried = replace(answers, **{option: _value(option, said)})
            wrong = [f.message for f in read_job_file(job_text(tried), "job").faults if f.field == field]
        except (ValueError, Unusable) as error:
            wrong = [str(error)]
        if not wrong:
            return tried
        errors.print(wrong[0], style="red")


def _value(option: str, said: str) -> Any:
    if option == "strategy":
        if (known := _strategy(said, [])) is None:
            raise ValueError(said)
        return known
    if option in _NUMBERS:
        return int(said)
    return said


def _write(path: Path, text: str, *, force: bool) -> None:
    if str(path) == STANDARD_INPUT:
        echo(text, end="")
        return
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise _is_there(path) from None
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from None
    output.print(
        f"{path} is written. Next: dtj validate {path}, dtj run {path} or dtj submit {path}",
    )


def _is_there(path: Path) -> Unusable:
    return Unusable(f"{path}: is there already", "--force replaces it, --output names another file")
