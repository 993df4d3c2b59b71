"""What one line of output says of a training: progress bars, Keras, Hugging Face's Trainer, and named numbers. Pure.

A line says nothing on its own: numbers stand in prose, too. `output.py` believes the second line of one form.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_LINE = 2000
"""Characters of a line that is looked at. Tables and dumps have longer ones."""
_MAYBE = re.compile(r"%\||\d/\d|step|epoch|iter|\b(?:it|ep|batch|update)", re.IGNORECASE)
"""What each of the forms has: most lines of a chatty program have nothing of it."""
_MARKS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")
_NUMBER = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

# tqdm.std.tqdm.format_meter; also Lightning's TQDMProgressBar, and Hugging Face's Trainer for its steps.
_BAR = re.compile(
    r"^(?P<desc>[^|]{0,120}?):?\s*\d{1,3}%\|[^|]*\|\s*(?P<n>\d+)/(?P<m>\d+)\s*"
    r"\[(?P<elapsed>[\d:]+)<[^,\]]*,\s*(?:\?|[\d.]+)\s*(?P<unit>[^,\]]+?)(?:,\s*(?P<rest>[^\]]*))?\]"
)
_UNITS = re.compile(
    r"^(?:it|ba|batch(?:es)?|steps?|iter(?:ation)?s?)/s$|^s/(?:it|ba|batch|step|iter(?:ation)?)$"
)
_OTHER_WORK = re.compile(
    r"valid|\bval\b|eval|test|predict|infer|download|upload|map|load|token|filter|generat|sav|writ|read|fetch|"
    r"process|cache|shard|sanity|extract|resolv|comput|convert|build|warm",
    re.IGNORECASE,
)
_EPOCH_OF_BAR = re.compile(r"\bepochs?\b\s*[:#]?\s*\[?\s*(\d+)(?:\s*(?:/|of)\s*(\d+))?", re.IGNORECASE)
_EPOCHS = re.compile(r"^\s*epochs?\s*$", re.IGNORECASE)
# Lightning's RichProgressBar.
_RICH = re.compile(
    r"^Epoch (?P<epoch>\d+)/(?P<epochs>\d+)\s+━[━╸╺ ]*\s(?P<n>\d+)/(?P<m>\d+)\s+[\d:]+ •\s+(?:[\d:\-]+\s+)?[\d.]+it/s"
    r"(?P<rest>.*)$"
)
# keras.src.utils.progbar.Progbar and keras.src.callbacks.progbar_logger.
_KERAS = re.compile(r"^\s*(?P<n>\d+)/(?P<m>\d+)\s+(?:[━ ]+)?\s*(?:-\s*)?(?P<rest>.*\bstep\b.*)$")
_KERAS_EPOCH = re.compile(r"^Epoch (\d+)/(\d+)$")
_DICT = re.compile(r"(\{.*\})\s*$")
_PAIR = re.compile(
    r"(?P<key>[A-Za-z][\w/.@-]*(?: [A-Za-z][\w/.@-]*){0,2})(?P<sign>\s*[:=]\s*|\s+)"
    rf"\[?\s*(?P<value>{_NUMBER})(?!\w|:\d)(?:\s*(?:/|of)\s*(?P<of>\d+)\b)?"
)
# pytorch/examples: imagenet's ProgressMeter.
_IMAGENET = re.compile(r"\bEpoch: \[(\d+)\]\[\s*(\d+)/(\d+)\]")
# pytorch/examples: mnist, whose steps are known as examples alone.
_MNIST = re.compile(r"\bEpoch: (\d+) \[(\d+)/(\d+) \(\d+%\)\]")
_STEP = re.compile(r"(?:^|[\s_])(?:steps?|iters?|iterations?|it|batch|updates?)$", re.IGNORECASE)
_EPOCH = re.compile(r"(?:^|[\s_])(?:epochs?|ep)$", re.IGNORECASE)
_MEASURE = re.compile(
    r"loss|acc(?:uracy)?\b|acc@|\berr(?:or)?\b|\blr\b|learning_rate|ppl|perplexity|reward|\breturn\b|score|\bm[sa]e\b|rmse|"
    r"\bf1\b|iou|bleu|rouge|\bauc\b|\bnll\b|elbo|\bkl\b|grad_norm|top-?\d|dice|psnr|\b[cw]er\b|\bbpc\b",
    re.IGNORECASE,
)
_BOOKKEEPING = re.compile(r"_runtime$|_per_second$|^total_flos$")


@dataclass(frozen=True)
class Said:
    """What a line says. `form`: equal for lines of one kind."""

    form: tuple[str, ...]
    step: int | None = None
    of: int | None = None
    """The number of steps that the line gives: of an epoch, or of all."""
    epoch: float | None = None
    epochs: int | None = None
    examples: int | None = None
    """Examples trained with, over all epochs, where the line counts examples in place of steps."""
    elapsed: int | None = None
    """Seconds that a bar has lasted."""
    values: Mapping[str, float] = field(default_factory=dict)
    is_bar: bool = False
    from_1: bool = False
    """Whether `epoch` is known to count from 1: of a script of one's own, the first epoch may be 0."""
    per_epoch: bool = False
    """Whether `step` and `of` are those of one epoch."""


def said(line: str) -> Said | None:
    """Return what a line says; None for nothing that is known."""
    if len(line) > LONGEST_LINE:
        return None
    if not _MAYBE.search(line):
        return None
    text = _MARKS.sub("", line).strip()
    for of_form in (_bar, _rich, _keras_epoch, _keras, _dictionary, _imagenet, _mnist, _pairs):
        if (found := of_form(text)) is not None:
            return found
    return None


def _bar(text: str) -> Said | None:
    match = _BAR.search(text)
    if match is None:
        return None
    desc = match["desc"].strip()
    n, m = int(match["n"]), int(match["m"])
    if _EPOCHS.match(desc) or re.match(r"^(?:epochs?/s|s/epochs?)$", match["unit"]):
        return Said(("epochs",), epoch=float(min(n + 1, m)), epochs=m, is_bar=True, from_1=True)
    epoch = _EPOCH_OF_BAR.search(desc)
    named = _EPOCH_OF_BAR.sub("", desc)
    if not _UNITS.match(match["unit"]) or _OTHER_WORK.search(named):
        return None
    rest = match["rest"] or ""
    values = {key: value for key, _, value in _named(rest.replace(", ", " ; "))} if rest else {}
    if epoch and "v_num" in rest:  # Lightning counts epochs from 0.
        values.pop("v_num", None)
        return Said(
            ("bar", "lightning", str(m)),
            n,
            m,
            float(int(epoch[1]) + 1),
            elapsed=_seconds(match["elapsed"]),
            values=values,
            is_bar=True,
            from_1=True,
            per_epoch=True,
        )
    return Said(
        ("bar", re.sub(r"\d+", "#", named), str(m)),
        n,
        m,
        float(epoch[1]) if epoch else None,
        int(epoch[2]) if epoch and epoch[2] else None,
        elapsed=_seconds(match["elapsed"]),
        values=values,
        is_bar=True,
        per_epoch=epoch is not None,
    )


def _rich(text: str) -> Said | None:
    match = _RICH.match(text)
    if match is None:
        return None
    values = {key: value for key, _, value in _named(match["rest"]) if key != "v_num"}
    epoch, epochs = float(int(match["epoch"]) + 1), int(match["epochs"]) + 1
    n, m = int(match["n"]), int(match["m"])
    return Said(("rich",), n, m, epoch, epochs, values=values, from_1=True, per_epoch=True)


def _keras_epoch(text: str) -> Said | None:
    match = _KERAS_EPOCH.match(text)
    return Said(("keras epoch",), epoch=float(match[1]), epochs=int(match[2]), from_1=True) if match else None


def _keras(text: str) -> Said | None:
    match = _KERAS.match(text)
    if match is None:
        return None
    pairs = [part.partition(":") for part in match["rest"].split(" - ")]
    values = {name.strip(): float(value) for name, _, value in pairs if re.fullmatch(_NUMBER, value.strip())}
    return (
        Said(("keras",), int(match["n"]), int(match["m"]), values=values, per_epoch=True) if values else None
    )


def _dictionary(text: str) -> Said | None:
    """Return a line of transformers.trainer_callback.PrinterCallback, or accelerate's `epoch 0: {...}`."""
    match = _DICT.search(text)
    if match is None or "'" not in match[1]:
        return None
    try:
        found = ast.literal_eval(match[1])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(found, dict) or "train_runtime" in found:  # Means over the whole training.
        return None
    values = {}
    for name, value in found.items():
        number = _number(value)
        if isinstance(name, str) and number is not None and not _BOOKKEEPING.search(name):
            values[name] = number
    epoch, counted = values.pop("epoch", None), None
    step = values.pop("step", None)
    if epoch is not None:
        counted = float(max(math.ceil(epoch), 1)) if epoch >= 0 else None
    else:
        before = _EPOCH_OF_BAR.search(text[: match.start()])
        counted = float(before[1]) if before else None
    if not values or (counted is None and step is None):
        return None
    form = ("dictionary", "own" if epoch is not None else "before", *sorted(values))
    number = int(step) if step is not None else None
    return Said(form, number, epoch=counted, values=values, from_1=epoch is not None)


def _imagenet(text: str) -> Said | None:
    match = _IMAGENET.search(text)
    if match is None:
        return None
    values = {key: value for key, _, value in _named(text[match.end() :].replace("\t", " ; "))}
    return Said(("imagenet",), int(match[2]), int(match[3]), float(match[1]), values=values, per_epoch=True)


def _mnist(text: str) -> Said | None:
    match = _MNIST.search(text)
    if match is None:
        return None
    epoch, n, m = (int(number) for number in match.groups())
    values = {key: value for key, _, value in _named(text[match.end() :])}
    return Said(("mnist",), epoch=float(epoch), examples=max(epoch - 1, 0) * m + n, values=values)


def _pairs(text: str) -> Said | None:
    """Return a line of named numbers with a step or an epoch, and at least one measure such as a loss."""
    step = of = epoch = epochs = None
    values, keys = {}, []
    for key, count, value in _named(text):
        if _EPOCH.search(key):
            epoch, epochs = value, count
            keys.append("epoch")
        elif _STEP.search(key) and value == int(value):
            step, of = int(value), count
            keys.append("step")
        else:
            values[key] = value
            keys.append(key.lower())
    measured = any(_MEASURE.search(key) for key in values)
    if not measured or (step is None and epoch is None):
        return None
    if step is not None and step < 0:
        return None
    form = ("pairs", *keys[:16])
    return Said(
        form, step, of, epoch, epochs, values=values, per_epoch=step is not None and epoch is not None
    )


def _named(text: str) -> list[tuple[str, int | None, float]]:
    """Return the named numbers of a line: the name, the number after a slash, and the value.

    A number without a colon or an equals sign counts if its name is a step, an epoch or a measure.
    """
    found = []
    for match in _PAIR.finditer(text):
        key = match["key"]
        plain = not match["sign"].strip()
        if plain or " " in key:
            key = _shortened(key)
        if plain and not (_STEP.search(key) or _EPOCH.search(key) or _MEASURE.search(key)):
            continue
        value = _number(match["value"])
        if value is not None:
            found.append((key, int(match["of"]) if match["of"] else None, value))
    return found


def _shortened(key: str) -> str:
    """Return the last words of a name that belong to it: `train loss`, but not `INFO step`."""
    words = key.split(" ")
    if len(words) > 1 and re.fullmatch(
        r"train|val|valid|validation|test|eval|training", words[-2], re.IGNORECASE
    ):
        return " ".join(words[-2:])
    return words[-1]


def _number(value: object) -> float | None:
    """Return a number, also one that is written as a text, as new releases of transformers do."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and not re.fullmatch(_NUMBER, value.strip()):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _seconds(text: str) -> int:
    seconds = 0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part or 0)
    return seconds
