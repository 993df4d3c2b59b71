"""The options of `dtj submit` and `dtj run` that make a job of a script or a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dtj.api.errors import Unusable
from dtj.api.git_annotations import git_annotations
from dtj.cli.terminal import errors, size
from dtj.cli.words import Words

if TYPE_CHECKING:
    from dtj.api.job import Manifest
    from dtj.client.code_job import Program, Wishes
    from dtj.client.defaults import Defaults, Value
    from dtj.client.packages import Wheels

_PANEL = "Of a script or folder"
_MOST_NAMED = 5
_MOST_ENV_BYTES = 1024**2

_OPTION_OF = {
    "artifacts.uri": "--artifacts",
    "artifacts.endpoint": "--artifacts-endpoint",
    "artifacts.secretName": "--secret",
    "serviceAccountName": "--service-account",
    "accelerator.nodeSelector": "--node-selector",
}
"""The option that sets a default value, by the key of the value."""

TargetArgument = Annotated[
    Path,
    typer.Argument(
        help="Job file, Python script or folder. `-` is a job file on standard input.", metavar="TARGET"
    ),
]


def _option(help_: str, metavar: str, *, least: int | None = None) -> Any:
    return typer.Option(help=help_, metavar=metavar, min=least, rich_help_panel=_PANEL)


@dataclass(frozen=True, kw_only=True)
class CodeOptions:
    """The values of the options; None for an option that is not given. `dtj.cli.options.with_fields` makes an option
    of each field.
    """

    workers: Annotated[int | None, _option("Number of workers; default: 2.", "N", least=1)] = None
    ps: Annotated[int | None, _option("Number of parameter servers.", "N", least=1)] = None
    gpus: Annotated[int | None, _option("GPUs of each worker.", "N", least=0)] = None
    strategy: Annotated[str | None, _option("Strategy; default: by the imports of the script.", "NAME")] = (
        None
    )
    image: Annotated[str | None, _option("Image of every replica.", "IMAGE")] = None
    artifacts: Annotated[
        str | None, _option("Where checkpoints, logs and the model go: s3://bucket/prefix.", "URI")
    ] = None
    artifacts_endpoint: Annotated[str | None, _option("URL of the job's S3-compatible store.", "URL")] = None
    secret: Annotated[str | None, _option("Secret with the job's S3 credentials.", "NAME")] = None
    service_account: Annotated[
        str | None, _option("ServiceAccount that reaches the bucket without a Secret.", "NAME")
    ] = None
    node_selector: Annotated[list[str] | None, _option("Label of the GPU nodes.", "KEY=VALUE")] = None
    env: Annotated[list[str] | None, _option("Environment variable, visible in the job.", "KEY=VALUE")] = None
    env_file: Annotated[Path | None, _option("File with a KEY=VALUE in each line.", "FILE")] = None
    env_from: Annotated[
        list[str] | None, _option("Secret of the cluster; each key is a variable.", "SECRET")
    ] = None
    requirements: Annotated[
        Path | None, _option("Packages of the program; default: requirements.txt beside the script.", "FILE")
    ] = None
    python: Annotated[str | None, _option("Python of an image that dtj does not know: 3.11.", "X.Y")] = None
    platform: Annotated[
        str | None, _option("Platform of an image that is not x86-64: manylinux_2_36_aarch64.", "TAG")
    ] = None
    replace_package: Annotated[
        list[str] | None, _option("Package of the image that --requirements may hide, such as torch.", "NAME")
    ] = None
    entrypoint: Annotated[
        str | None, _option("The script in a folder; default: train.py, main.py or the only one.", "SCRIPT")
    ] = None

    def refuse_for(self, file: Path) -> None:
        """Raise Unusable if an option is given: in a job file, fields of the spec replace these options."""
        for each in fields(self):
            if getattr(self, each.name) not in (None, []):
                raise Unusable(
                    f"--{each.name.replace('_', '-')} is only for a script or a folder, and {file} is a job file",
                    "set the field in the job file instead",
                )

    def program(self, target: Path) -> Program:
        """Return the program of a script or folder, and print the line that decided the strategy. Raises Unusable."""
        from dtj.client.code_job import read_program

        if not target.exists():
            raise Unusable(f"{target} does not exist")
        program = read_program(target, self.entrypoint, self.strategy)
        found = program.strategy
        if self.strategy is None:
            errors.print(f"{program.entrypoint}:{found.line}: {found.text} → strategy {found.strategy}")
        return program

    def wishes(self, words: Words) -> Wishes:
        """Return the replicas, variables and arguments that the options ask for. Raises Unusable."""
        from dtj.client.code_job import Wishes

        env = dict(_of_file(self.env_file)) if self.env_file else {}
        env |= dict(_pair(text, "--env") for text in self.env or [])
        return Wishes(
            workers=2 if self.workers is None else self.workers,
            ps=self.ps,
            gpus=self.gpus or 0,
            env=env,
            env_from=self.env_from or [],
            args=words.after or (),
        )

    @contextmanager
    def wheels(self, program: Program, image: str, *, local: bool) -> Iterator[Wheels | None]:
        """Yield the wheels that a program needs besides the packages of its image; None if the program needs none.

        The files exist during the context. image: the image of the job. local: the job runs on this machine. Raises
        Unusable.
        """
        from dtj.client.image_python import python_here, python_of
        from dtj.client.packages import choose

        requirements = self.requirements or program.requirements
        if requirements is None:
            yield None
            return
        if local and (self.python or self.platform):
            raise Unusable(
                "--python and --platform describe an image, and `dtj run` uses the Python of this machine"
            )
        python = python_here() if local else python_of(image, self.python, self.platform)
        with tempfile.TemporaryDirectory(prefix="dtj-wheels-") as folder:
            errors.print(f"{requirements}: choosing wheels for Python {python.version}", style="dim")
            wheels = choose(requirements, python, Path(folder), self.replace_package or ())
            if wheels.found.image:
                errors.print(f"{python.what} has {_listed(list(wheels.found.image))}", style="dim")
            yield wheels if wheels.paths else None

    def values(self, strategy: str, *others: tuple[str, Defaults | None]) -> dict[str, Value]:
        """Return each default value from the first source that sets it. Raises Unusable.

        The sources are the options, the user's file, and the others in their order. others: the name of each source,
        and its defaults.
        """
        from dtj.client.defaults import OPTIONS, config_file, of_file, resolved

        file = config_file()
        return resolved([(OPTIONS, self._defaults(strategy)), (str(file), of_file(file)), *others])

    def _defaults(self, strategy: str) -> Defaults:
        from dtj.client.defaults import OPTIONS, read_plain

        artifacts = {
            "uri": self.artifacts, "endpoint": self.artifacts_endpoint, "secretName": self.secret,
        }  # fmt: skip
        selector = dict(_pair(text, "--node-selector") for text in self.node_selector or [])
        plain = {
            "image": {strategy: self.image} if self.image else None,
            "artifacts": {key: value for key, value in artifacts.items() if value is not None} or None,
            "serviceAccountName": self.service_account,
            "accelerator": {"nodeSelector": selector} if selector else None,
        }
        try:
            return read_plain({key: value for key, value in plain.items() if value is not None}, OPTIONS)
        except Unusable as error:
            message = error.message.removeprefix(f"{OPTIONS}: ")
            for key, option in _OPTION_OF.items():
                message = message.replace(f"{key}: ", f"{option}: ")
            raise Unusable(message) from None


@contextmanager
def code_job(
    program: Program,
    wishes: Wishes,
    name: str,
    image: str,
    defaults: Mapping[str, Value],
    options: CodeOptions,
    *,
    local: bool = False,
) -> Iterator[tuple[Manifest, Path, Path | None]]:
    """Yield the job of a program and the archives of its code and of its packages, which exist during the context.
    Raises Unusable.

    Prints what the archives have and what stays out of them. local: the job runs on this machine.
    """
    from dtj.client.code_job import job_manifest, packed_code, packed_packages
    from dtj.client.git_state import git_state

    with tempfile.TemporaryDirectory(prefix="dtj-code-") as folder:
        archive, packages = Path(folder) / "code.tar.gz", None
        uri = defaults.get("artifacts.uri")
        store = uri.value if uri else None
        with archive.open("wb") as file:
            packed, code = packed_code(program, file, store, local=local)
        files = sum(not path.is_dir() for _, path in program.selection.entries)
        count = "1 file" if files == 1 else f"{files:,} files"
        errors.print(f"{program.folder}: {count}, {size(packed.packed_bytes)} packed")
        _tell_left_out(program)
        with options.wheels(program, image, local=local) as wheels:
            if wheels is not None:
                packages = Path(folder) / "packages.tar.gz"
                with packages.open("wb") as file:
                    packed, code = packed_packages(wheels, file, code, store, local=local)
                errors.print(f"packages: {_listed(wheels.names)}, {size(packed.packed_bytes)}")
        manifest = job_manifest(name, program, code, image, wishes, defaults)
        state = git_state(program.folder, [name for name, _ in program.selection.entries])
        if annotations := git_annotations(state):
            manifest["metadata"]["annotations"] = annotations
        yield manifest, archive, packages


def _tell_left_out(program: Program) -> None:
    selection = program.selection
    for each in selection.left_out:
        errors.print(f"left out: {each.name}: {each.why}", style="yellow")
    if named := selection.ignored:
        errors.print(f"left out by .dtjignore and the default patterns: {_listed(named)}", style="dim")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def _pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise Unusable(f"{option} {text}: must be KEY=VALUE")
    return key, value


def _of_file(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the variables of a file. Quotes stay, as in `docker run --env-file`."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_ENV_BYTES + 1)
        if len(text) > _MOST_ENV_BYTES:
            raise Unusable(f"--env-file {path}: larger than the maximum of {_MOST_ENV_BYTES:,} bytes")
        lines = text.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise Unusable(f"--env-file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Unusable(f"--env-file {path}: not text in UTF-8") from None
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            key, equals, value = stripped.partition("=")
            if not (key and equals):
                raise Unusable(f"--env-file {path}, line {number}: must be KEY=VALUE")
            yield key, value
