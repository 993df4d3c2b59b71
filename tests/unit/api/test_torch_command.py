"""Launchers of torch.distributed in a command: which words call one, and with which options."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dtj.api.torch_command import launchers_in

FOUND = {
    "torchrun train.py": "torchrun",
    "/opt/conda/bin/torchrun --nnodes=2 train.py": "torchrun",
    "python -m torch.distributed.run train.py": "torchrun",
    "python3.11 -u -X dev -m torch.distributed.launch --use_env train.py": "torchrun",
    "python -um torch.distributed.run train.py": "torchrun",
    "python /usr/local/bin/torchrun train.py": "torchrun",
    "accelerate launch train.py": "accelerate launch",
    "accelerate-launch train.py": "accelerate launch",
    "python -m accelerate.commands.launch train.py": "accelerate launch",
    "deepspeed --num_gpus 2 train.py": "deepspeed",
    "env NCCL_DEBUG=INFO torchrun train.py": "torchrun",
    "tini -- torchrun train.py": "torchrun",
    "timeout 3600 uv run --frozen torchrun train.py": "torchrun",
    "numactl --cpunodebind=0 python -m torch.distributed.run train.py": "torchrun",
}
NOT_FOUND = [
    "python train.py",
    "python train.py torchrun",
    "python -m train --launcher torchrun",
    "python -c 'import torch' -m torch.distributed.run",
    "bash train.sh torchrun",
    "./train torchrun",
    "accelerate config",
    "mpirun -np 2 train",
    "python",
]


@pytest.mark.parametrize(("command", "name"), FOUND.items())
def test_a_command_that_calls_a_launcher(command: str, name: str) -> None:
    (launcher,) = launchers_in(shlex.split(command))

    assert launcher.name == name
    assert launcher.at is not None
    assert shlex.split(command)[launcher.at - 1] == launcher.word


@pytest.mark.parametrize("command", NOT_FOUND)
def test_a_command_that_calls_none(command: str) -> None:
    assert launchers_in(shlex.split(command)) == []
    assert launchers_in(["bash", "-c", command]) == []
    assert launchers_in([]) == []


@pytest.mark.parametrize("shell", ["sh -c", "bash -lc", "/bin/bash -euo pipefail -c", "tini -- bash -x -c"])
@pytest.mark.parametrize(("command", "name"), FOUND.items())
def test_the_text_of_a_shell_is_read_as_a_command(shell: str, command: str, name: str) -> None:
    text = f"set -e; export A='b c'\npip install deepspeed && X=1 {command} | tee log  # it's not torchrun --nnodes 9"

    (launcher,) = launchers_in([*shell.split(), text])

    assert (launcher.name, launcher.word, launcher.at) == (name, text, None)


def test_an_empty_word_does_not_end_a_command() -> None:
    (launcher,) = launchers_in(["bash", "-c", "torchrun --nnodes 2 --role '' --standalone train.py"])
    assert list(launcher.options) == ["--nnodes", "--role", "--standalone"]


def test_a_text_may_call_several_launchers_and_a_shell_another_one() -> None:
    text = "if [ -n \"$A\" ]; then torchrun a.py; else\n exec bash -c 'accelerate launch \\\n --cpu b.py'\nfi"

    assert [(each.name, list(each.options), each.word) for each in launchers_in(["bash", "-c", text])] == [
        ("torchrun", [], text),
        ("accelerate launch", ["--cpu"], text),
    ]


def test_a_text_with_a_quote_that_does_not_end_is_read_by_words() -> None:
    (launcher,) = launchers_in(["bash", "-c", "cat <<END\nit's\nEND\ntorchrun --nnodes=1 train.py"])

    assert launcher.options["--nnodes"].value == "1"


def test_options_end_at_the_script_and_are_known_by_one_spelling() -> None:
    words = shlex.split(
        "torchrun --nnodes 1 --nproc_per_node=4 --standalone -r3 -t 3 --no_python --node-rank=$RANK -m train "
        "--nnodes=9"
    )

    (launcher,) = launchers_in(words)

    assert {name: (each.value, each.literal, each.written) for name, each in launcher.options.items()} == {
        "--nnodes": ("1", "1", "--nnodes 1"),
        "--nproc-per-node": ("4", "4", "--nproc_per_node=4"),
        "--standalone": ("", "", "--standalone"),
        "-r": ("3", "3", "-r3"),
        "-t": ("3", "3", "-t 3"),
        "--no-python": ("", "", "--no_python"),
        "--node-rank": ("$RANK", None, "--node-rank=$RANK"),
        "-m": ("", "", "-m"),
    }


WORDS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12), max_size=8)
OPTIONS = st.lists(
    st.sampled_from(["--standalone", "--nnodes=2", "--node_rank=$(RANK)", "--master-addr=a b", "-m"]),
    max_size=4,
)


@given(WORDS)
def test_no_command_is_too_strange(words: list[str]) -> None:
    launchers_in(words)
    launchers_in(["bash", "-c", *words])


@given(OPTIONS, WORDS)
@example(["--node_rank=$(RANK)"], [" #"])  # A quoted word that looks like a comment.
@example(["--standalone"], ["it's", '\\"', " #'"])
def test_a_shell_changes_nothing_in_what_is_read(options: list[str], rest: list[str]) -> None:
    command = ["torchrun", *options, "train.py", *rest]

    (direct,) = launchers_in(command)
    (in_text,) = launchers_in(["bash", "-c", shlex.join(command)])

    assert {name: each.written for name, each in direct.options.items()} == {
        name: each.written for name, each in in_text.options.items()
    }
