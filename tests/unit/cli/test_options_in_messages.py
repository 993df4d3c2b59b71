"""Every option that a message names is an option of the command that prints the message."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dtj.cli.commands import COMMANDS, load

OPERATOR = Path(__file__).parents[3] / "operator/dtj"
PRINTED_BY = {"local": ("run", "status"), "client/code_job.py": ("submit", "run")}
PRINTED_BY |= {f"client/{name}.py": ("submit", "run") for name in ("image_python", "packages")}
"""Commands that print the messages of a module or folder outside `cli`. Other modules serve all commands and
programs of users: their messages name variables.
"""
OF_ALL = {"--help", "--debug", "--data-cache"}
"""The last one is an option of the built-in programs."""
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
_LINE = re.compile(r"\bdtj ([a-z]+(?: [a-z]+)*)([^`&|\n]*)")
_OTHER_PROGRAM = re.compile(r"\b(?:kubectl|pip|docker|helm|torchx|git|python) [^`\n]*")


class Message(NamedTuple):
    """A text in a module, and the function or class of the module that has it."""

    module: str
    function: str
    text: str


def messages(path: Path) -> Iterator[Message]:
    tree = ast.parse(path.read_text())
    for top in tree.body:
        nodes = [*ast.walk(top)]
        # A text that is a statement is a docstring. The parts of an f-string are told with the f-string.
        left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        left_out |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            # One word is an argument of a program, or the name of an option in a declaration.
            if id(node) not in left_out and " " in (text := _text(node)).strip():
                yield Message(str(path.relative_to(OPERATOR)), getattr(top, "name", ""), text)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@cache
def options(command: str) -> frozenset[str]:
    """Return the options of a command, or of a subcommand after a space; with those of its subcommands."""
    name, *inner = command.split()
    found: Any = load(name)
    for word in inner:
        found = found.commands[word]
    under = [options(f"{command} {word}") for word in getattr(found, "commands", ())]
    own = (option for param in found.params for option in (*param.opts, *param.secondary_opts))
    return frozenset(OF_ALL).union(own, *under)


def command_of(words: str) -> str:
    """Return the command at the begin of the words of a line."""
    name, *rest = words.split()
    inner = getattr(load(name), "commands", {}) if rest else {}
    return f"{name} {rest[0]}" if rest and rest[0] in inner else name


@cache
def importing(module: str) -> frozenset[str]:
    """Return the modules of `cli` that import a module of it, and the module itself."""
    sources = {path.stem: path.read_text() for path in (OPERATOR / "cli").glob("*.py")}
    found, new = set[str](), {module}
    while new:
        found |= new
        lines = re.compile(r"from dtj\.cli(?:\.| import )(?:{})\b".format("|".join(new)))
        new = {name for name, source in sources.items() if lines.search(source)} - found
    return frozenset(found)


def known_to(message: Message) -> frozenset[str]:
    """Return the options that a message may name."""
    folder, _, file = message.module.partition("/")
    if folder != "cli":
        commands = PRINTED_BY.get(message.module) or PRINTED_BY.get(folder, ())
    elif message.function in COMMANDS and COMMANDS[message.function].module == Path(file).stem:
        commands = (message.function,)
    else:
        modules = importing(Path(file).stem)
        commands = tuple(name for name, listed in COMMANDS.items() if listed.module in modules)
    return frozenset(OF_ALL).union(*map(options, commands))


def faults(message: Message) -> Iterator[str]:
    text = _OTHER_PROGRAM.sub("", message.text)
    for words, rest in _LINE.findall(text):
        if words.split()[0] in COMMANDS:
            for option in {*_OPTION.findall(rest)} - options(command_of(words)):
                yield f"`dtj {words}` has no option {option}: {message.text}"
    for option in {*_OPTION.findall(_LINE.sub("", text))} - known_to(message):
        yield f"{message.module} {message.function}: its commands have no option {option}: {message.text}"


def test_a_message_names_options_that_its_command_has() -> None:
    paths = [path for folder in ("cli", "client", "local") for path in (OPERATOR / folder).glob("*.py")]
    found = [each for path in paths for each in messages(path) if _OPTION.search(each.text)]
    assert len(found) > 50
    assert [fault for each in found for fault in faults(each)] == []


def test_what_would_be_a_fault() -> None:
    for module, function, text in (
        ("cli/logs.py", "logs", "give --endpoint URL"),
        ("cli/submit.py", "submit", "`dtj logs NAME --workers 2` shows it"),
        ("client/credentials.py", "environment_of", "set AWS_ENDPOINT_URL_S3 or --endpoint"),
        ("client/code_job.py", "named", "give --checkpoint 3"),
    ):
        assert [*faults(Message(module, function, text))], text
