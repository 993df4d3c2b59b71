"""Makes the job of a script or a folder: which program, which strategy, how many pods, from which image."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from dtj.api.errors import Unusable
from dtj.api.identity import API_VERSION, KIND
from dtj.api.job import Manifest
from dtj.api.pod_template import TRAINER_CONTAINER
from dtj.api.shown import enumerated
from dtj.api.spec import Code, Packages
from dtj.api.strategies import RULES
from dtj.client import packages
from dtj.client.code_folder import Selection, pack, select
from dtj.client.defaults import Value
from dtj.client.packages import Wheels
from dtj.convert.script_strategy import Found, found_in, strategy_of
from dtj_trainer.contract.code_archive import CONFIG_MAP_BYTES, Packed

USUAL_SCRIPTS = ("train.py", "main.py")
_ALPHABET = "bcdfghjkmnpqrstvwxz23456789"
_RANDOM_LENGTH = 5
_LONGEST_NAME = 40
"""The largest number of characters of a name that dtj makes. Pods add a role and an index to this name."""


@dataclass(frozen=True)
class Program:
    """The code of a job, and the script that runs."""

    folder: Path
    """The folder whose files are sent."""
    entrypoint: str
    """The script's path in the folder, with `/`."""
    selection: Selection
    strategy: Found

    @property
    def requirements(self) -> Path | None:
        """Return the requirements.txt beside the script, unless it stays out of the code."""
        name = str(Path(self.entrypoint).with_name(packages.REQUIREMENTS))
        return next((path for entry, path in self.selection.entries if entry == name), None)

    @property
    def name(self) -> str:
        """Return the script's name as the name of a job."""
        words = re.sub(r"[^a-z0-9]+", "-", Path(self.entrypoint).stem.lower()).strip("-")
        name = words if words[:1].isalpha() else f"job-{words}".strip("-")
        return name[:_LONGEST_NAME].strip("-")


@dataclass(frozen=True)
class Wishes:
    """What the options of a command ask for. None: the default."""

    workers: int = 2
    ps: int | None = None
    gpus: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    env_from: Sequence[str] = ()
    """Names of Secrets whose keys become environment variables."""
    args: Sequence[str] = ()
    """The arguments of the program."""


def read_program(target: Path, entrypoint: str | None = None, strategy: str | None = None) -> Program:
    """Return the program of a script or a folder.

    target: a script, whose folder is sent, or a folder. entrypoint: path of the script in the folder; by default
    train.py, main.py or the only script of the folder. strategy: by default that of the script.
    Raises Unusable if the folder can't be sent, or does not tell script or strategy.
    """
    if target.is_dir():
        folder, script = target, entrypoint or _only_script(target)
    elif entrypoint is not None:
        raise Unusable(
            f"--entrypoint names a script in a folder, and {target} is not a folder", "give the folder"
        )
    else:
        folder, script = target.parent, target.name
    script = str(Path(script))
    path = folder / script
    if Path(script).is_absolute() or ".." in Path(script).parts:
        raise Unusable(f"--entrypoint {script} must be the path of a script in {folder}")
    if not path.is_file():
        raise Unusable(f"there is no script {path}")
    selection = select(folder)
    if script not in {name for name, _ in selection.entries}:
        raise Unusable(
            f"the script {script} is left out of the archive", f"`!{script}` in .dtjignore includes it"
        )
    try:
        source = path.read_bytes()
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from None
    found = strategy_of(source, script) if strategy is None else found_in(named(strategy), source, script)
    return Program(folder, script, selection, found)


def named(strategy: str) -> str:
    """Return the strategy of a name in any case. Raises Unusable."""
    known = next((name for name in RULES if name.lower() == strategy.lower()), None)
    if known is None:
        raise Unusable(f"--strategy must be {enumerated(RULES, 'or')}, got {strategy}")
    return known


def random_name(name: str) -> str:
    """Return a name with a short random end."""
    end = "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_LENGTH))
    return f"{name[:_LONGEST_NAME].strip('-')}-{end}"


def packed_code(
    program: Program, archive: BinaryIO, store: str | None, *, local: bool = False
) -> tuple[Packed, Code]:
    """Pack the code of a program; return what the archive has, and `spec.code`.

    store: the `artifacts.uri` of the job, below which the archive is uploaded if it is too large for a ConfigMap.
    local: the job runs on this machine, which reads an archive of any size from a file.
    Raises Unusable if the folder can't be packed, or needs a bucket and there is none.
    """
    packed = pack(program.selection, archive)
    code = Code(
        digest=packed.digest, config_map=random_name(f"{program.name}-code"), entrypoint=program.entrypoint
    )
    if local or packed.packed_bytes <= CONFIG_MAP_BYTES:
        return packed, code
    uri = _uri_of(packed, store, "code", "name in .dtjignore what the program does not need")
    return packed, Code(digest=packed.digest, uri=uri, entrypoint=program.entrypoint)


def packed_packages(
    wheels: Wheels, archive: BinaryIO, code: Code, store: str | None, *, local: bool = False
) -> tuple[Packed, Code]:
    """Pack wheels; return what the archive has, and `code` with the packages: in the ConfigMap of the code if they
    fit it. store, local: as for `packed_code`.

    Raises Unusable if the wheels exceed a limit, or need a bucket and there is none.
    """
    packed = packages.pack(wheels, archive)
    found = Packages(digest=packed.digest, config_map=code.config_map)
    if not local and (code.config_map is None or packed.packed_bytes > CONFIG_MAP_BYTES):
        uri = _uri_of(packed, store, "packages", "put the packages into the image")
        found = Packages(digest=packed.digest, uri=uri)
    return packed, code.model_copy(update={"packages": found})


def _uri_of(packed: Packed, store: str | None, what: str, otherwise: str) -> str:
    """Return the URI of an archive that is too large for a ConfigMap. Jobs with the same archive share one object."""
    if store is None:
        raise Unusable(
            f"the archive of {what} has {packed.packed_bytes:,} bytes, and a ConfigMap takes at most "
            f"{CONFIG_MAP_BYTES:,}",
            f"give --artifacts s3://bucket/prefix, or {otherwise}",
        )
    return f"{store.rstrip('/')}/_code/{packed.digest.partition(':')[2]}.tar.gz"


def job_manifest(
    name: str, program: Program, code: Code, image: str, wishes: Wishes, defaults: Mapping[str, Value]
) -> Manifest:
    """Return the job. image: the image of every replica. defaults: as `dtj.client.defaults.resolved` returns them."""
    spec: dict[str, Any] = {
        "strategy": program.strategy.strategy,
        "image": image,
        "args": list(wishes.args),
        "env": [{"name": key, "value": value} for key, value in wishes.env.items()],
        "code": code.model_dump(by_alias=True, mode="json", exclude_none=True),
        "replicaSpecs": _replica_specs(program.strategy, wishes, defaults),
        "accelerator": _table(defaults, "accelerator"),
        "artifacts": _table(defaults, "artifacts"),
    }
    given = {key: value for key, value in spec.items() if value not in ([], {})}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": given}


def _table(defaults: Mapping[str, Value], table: str) -> dict[str, Any]:
    return {
        key.partition(".")[2]: found.value for key, found in defaults.items() if key.startswith(f"{table}.")
    }


def _replica_specs(found: Found, wishes: Wishes, defaults: Mapping[str, Value]) -> Manifest:
    rules = RULES[found.strategy]
    replicas = dict(found.replicas)
    if wishes.ps is not None:
        if (ps := rules.role_of_option("ps")) is None:
            raise Unusable(f"--ps is for parameter servers, and {found.strategy} has none", "leave out --ps")
        replicas = {ps: wishes.ps}
    worker = rules.role_of_option("workers")
    assert worker is not None, "each strategy has workers"
    specs: Manifest = {worker: {"replicas": wishes.workers, **({"gpus": wishes.gpus} if wishes.gpus else {})}}
    specs |= {role: {"replicas": count} for role, count in replicas.items()}
    if template := _template(wishes, defaults):
        for role, rule in rules.roles.items():
            if role not in specs and rule.implied:
                specs[role] = {"resources": {kind: dict(amounts) for kind, amounts in rule.resources.items()}}
            if role in specs and specs[role].get("replicas") != 0:
                specs[role]["template"] = template
    return specs


def _template(wishes: Wishes, defaults: Mapping[str, Value]) -> Manifest:
    """Return the pod template of each role: the ServiceAccount and the variables that the user asks for."""
    pod: Manifest = {}
    if account := defaults.get("serviceAccountName"):
        pod["serviceAccountName"] = account.value
    if wishes.env_from:
        sources = [{"secretRef": {"name": secret}} for secret in wishes.env_from]
        pod["containers"] = [{"name": TRAINER_CONTAINER, "envFrom": sources}]
    return {"spec": pod} if pod else {}


def _only_script(folder: Path) -> str:
    try:
        scripts = sorted(path.name for path in folder.glob("*.py"))
    except OSError as error:
        raise Unusable(f"{folder}: {error.strerror}") from None
    for name in USUAL_SCRIPTS:
        if name in scripts:
            return name
    if len(scripts) == 1:
        return scripts[0]
    told = (
        f"has the scripts {enumerated(scripts[:5], 'and')}, and dtj can't tell which one runs"
        if scripts
        else "has no file *.py at its top"
    )
    raise Unusable(f"{folder} {told}", "give --entrypoint train.py")
