"""What one line of output says of a training: progress bars, Keras, Hugging Face's Trainer, and named numbers. Pure.

A single line proves nothing, because prose has numbers, too. `output.py` counts a form from its second line on.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_LINE = 2000
"""The most characters of a line that is read. Tables and dumps have longer lines."""
_MAYBE = re.compile(r"%\||\d/\d|step|epoch|iter|loss|acc|\dit \[|\b(?:it|ep|batch|update)", re.IGNORECASE)
"""A quick check: every known form matches it, and most lines of a chatty program do not."""
LARGEST = 1 << 53
"""The largest number that counts as a step."""
_MARKS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")
_NUMBER = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

# Bars of tqdm (tqdm.std.tqdm.format_meter), of Lightning's TQDMProgressBar, and of Hugging Face's Trainer.
_BAR = re.compile(
    r"^(?P<desc>[^|]{0,120}?):?\s*\d{1,3}%\|[^|]*\|\s*(?P<n>\d+)/(?P<m>\d+)\s*"
    r"\[(?P<elapsed>[\d:]+)<[^,\]]*,\s*(?:\?|[\d.]+)\s*(?P<unit>[^,\]]+?)(?:,\s*(?P<rest>[^\]]*))?\]"
)
# Bars of tqdm that has no total.
_OPEN_BAR = re.compile(
    r"^(?P<desc>[^|]{0,120}?):?\s*\b(?P<n>\d+)(?:it|ba|batch(?:es)?|steps?) "
    r"\[(?P<elapsed>[\d:]+),\s*(?:\?|[\d.]+)\s*(?P<unit>[^,\]]+?)(?:,\s*(?P<rest>[^\]]*))?\]"
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
# Bars of Lightning's RichProgressBar.
_RICH = re.compile(
    r"^Epoch (?P<epoch>\d+)/(?P<epochs>\d+)\s+━[━╸╺ ]*\s(?P<n>\d+)/(?P<m>\d+)\s+[\d:]+ •\s+(?:[\d:\-]+\s+)?[\d.]+it/s"
    r"(?P<rest>.*)$"
)
# Bars of Keras: keras.src.utils.progbar.Progbar and keras.src.callbacks.progbar_logger.
_KERAS = re.compile(r"^\s*(?P<n>\d+)/(?P<m>\d+)\s+(?:[━ ]+)?\s*(?:-\s*)?(?P<rest>.*\bstep\b.*)$")
_KERAS_EPOCH = re.compile(r"^Epoch (\d+)/(\d+)$")
_DICT = re.compile(r"(\{.*\})\s*$")
_PAIR = re.compile(
    r"(?P<key>[A-Za-z][\w/.@-]*(?: [A-Za-z][\w/.@-]*){0,2})(?P<sign>\s*[:=]\s*|\s+)"
    rf"\[?\s*(?P<value>{_NUMBER})(?!\w|:\d)(?:\s*(?:/|of)\s*(?P<of>\d+)\b)?"
)
# Lines of pytorch/examples: imagenet's ProgressMeter. mmcv's TextLoggerHook prints them, too.
_IMAGENET = re.compile(r"\bEpoch:? \[(\d+)\]\s?\[\s*(\d+)/(\d+)\]")
# Lines of pytorch/examples: dcgan.
_DCGAN = re.compile(r"^\[(\d+)/(\d+)\]\s*\[\s*(\d+)/(\d+)\]\s")
# Lines of pytorch/examples: mnist, which count examples and not steps.
_MNIST = re.compile(r"\bEpoch: (\d+) \[(\d+)/(\d+) \(\d+%\)\]")
_STEP = re.compile(r"(?:^|[\s_])(?:steps?|iters?|iterations?|it|batch|updates?)$", re.IGNORECASE)
_OF_ALL = re.compile(r"global|total|^num_updates$", re.IGNORECASE)
"""If a line has two steps, the one with such a name counts."""
_EPOCH = re.compile(r"(?:^|[\s_])(?:epochs?|ep)$", re.IGNORECASE)
_MEASURE = re.compile(
    r"loss|acc(?:uracy)?\b|acc@|\w[ _/]err(?:or)?\b|\blr\b|learning_rate|ppl|perplexity|reward|\breturn\b|score|"
    r"\bm[sa]e\b|rmse|\bf1\b|iou|bleu|rouge|\bauc\b|\bnll\b|elbo|\bkl\b|grad_norm|top-?\d|dice|psnr|\b[cw]er\b|\bbpc\b",
    re.IGNORECASE,
)
_BOOKKEEPING = re.compile(r"_runtime$|_per_second$|^total_flos$")
_NO_VALUE = re.compile(r"^eta$|\.py$", re.IGNORECASE)
_OF_DATA = re.compile(
    r"\b(?:(?P<train>train(?:ing)?)|(?P<val>val(?:id(?:ation)?)?|eval(?:uation)?|dev)|(?P<test>test(?:ing)?))\b",
    re.IGNORECASE,
)
"""Words in a line of output that name the data (training, validation or test) of the figures after them."""
_NOT_OF_DATA = re.compile(r"\blr\b|learning|time", re.IGNORECASE)


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
    """Whether `epoch` is known to count from 1. A user's own script may count from 0."""
    per_epoch: bool = False
    """Whether `step` and `of` are those of one epoch."""
    aside: bool = False
    """Whether `step` is that of a validation or a test."""


def said(line: str) -> Said | None:
    """Return what a line says; None for nothing that is known."""
    if len(line) > LONGEST_LINE:
        return None
    if not _MAYBE.search(line):
        return None
    text = _MARKS.sub("", line).strip()
    bar = (_BAR.search(text) or _OPEN_BAR.search(text)) if "[" in text else None
    if bar is not None or "%|" in text:
        # Search the line for no other form: the numbers around a bar of other work belong to that work.
        return _bar(bar) if bar is not None else None
    for of_form in (_rich, _keras_epoch, _keras, _dictionary, _imagenet, _dcgan, _mnist, _pairs):
        if (found := of_form(text)) is not None:
            return found if _is_countable(found) else None
    return None


def _is_countable(found: Said) -> bool:
    return (found.step or 0) <= LARGEST and 0 <= (found.epoch or 0) <= LARGEST


def _bar(match: re.Match[str]) -> Said | None:
    desc = match["desc"].strip()
    n, m = int(match["n"]), int(match.groupdict().get("m") or 0)
    if _EPOCHS.match(desc) or re.match(r"^(?:epochs?/s|s/epochs?)$", match["unit"]):
        return Said(
            ("epochs",), epoch=float(min(n + 1, m or n + 1)), epochs=m or None, is_bar=True, from_1=True
        )
    epoch = _EPOCH_OF_BAR.search(desc)
    named = _EPOCH_OF_BAR.sub("", desc)
    if not _UNITS.match(match["unit"]) or _OTHER_WORK.search(named):
        return None
    rest = match["rest"] or ""
    values = _values(rest.replace(", ", " ; "))
    if epoch and "v_num" in rest:  # Lightning counts epochs from 0.
        values.pop("v_num", None)
        return Said(
            ("bar", "lightning", str(m)),
            n,
            m or None,
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
        m or None,
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
    values = _values(match["rest"])
    values.pop("v_num", None)
    epoch, epochs = float(int(match["epoch"]) + 1), int(match["epochs"]) + 1
    n, m = int(match["n"]), int(match["m"])
    return Said(("rich",), n, m, epoch, epochs, values=values, from_1=True, per_epoch=True)


def _keras_epoch(text: str) -> Said | None:
    match = _KERAS_EPOCH.match(text)
    return Said(("keras epoch",), epoch=float(match[1]), epochs=int(match[2])) if match else None


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
    """Return a line of transformers.trainer_callback.PrinterCallback, accelerate's `epoch 0: {...}`, or JSON."""
    match = _DICT.search(text)
    if match is None or not ("'" in match[1] or '"' in match[1]):
        return None
    is_json = "'" not in match[1]
    try:
        found = json.loads(match[1]) if is_json else ast.literal_eval(match[1])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    # Hugging Face's last line has means over the whole training.
    if not isinstance(found, dict) or "train_runtime" in found:
        return None
    values = {}
    for name, value in found.items():
        number = _number(value)
        if isinstance(name, str) and number is not None and not _BOOKKEEPING.search(name):
            values[name] = number
    epoch, counted = values.pop("epoch", None), None
    step = values.pop("step", None)
    if is_json and not any(map(_MEASURE.search, values)):
        return None
    if epoch is not None and is_json:
        counted = epoch
    elif epoch is not None:
        counted = float(max(math.ceil(epoch), 1)) if epoch >= 0 else None
    else:
        before = _EPOCH_OF_BAR.search(text[: match.start()])
        counted = float(before[1]) if before else None
    if not values or (counted is None and step is None):
        return None
    own = epoch is not None and not is_json
    form = ("dictionary", "own" if own else "json" if is_json else "before", *sorted(values))
    number = int(step) if step is not None else None
    return Said(form, number, epoch=counted, values=values, from_1=own)


def _imagenet(text: str) -> Said | None:
    match = _IMAGENET.search(text)
    if match is None:
        return None
    values = _values(text[match.end() :].replace("\t", " ; "))
    return Said(("imagenet",), int(match[2]), int(match[3]), float(match[1]), values=values, per_epoch=True)


def _dcgan(text: str) -> Said | None:
    match = _DCGAN.search(text)
    values = _values(text[match.end() :].replace("\t", " ; ")) if match else {}
    if match is None or not any(map(_MEASURE.search, values)):
        return None
    epoch, epochs, n, m = (int(number) for number in match.groups())
    return Said(("dcgan",), n, m, float(epoch), epochs, values=values, per_epoch=True)


def _mnist(text: str) -> Said | None:
    match = _MNIST.search(text)
    if match is None:
        return None
    epoch, n, m = (int(number) for number in match.groups())
    values = _values(text[match.end() :])
    return Said(("mnist",), epoch=float(epoch), examples=max(epoch - 1, 0) * m + n, values=values)


def _pairs(text: str) -> Said | None:
    """Return a line of named numbers with a measure such as a loss; `values` alone may be of the epoch before."""
    step = of = epoch = epochs = None
    whose, of_all, aside = "", False, False
    values: dict[str, float] = {}
    keys = []
    for name, key, count, value, data in _named(text):
        if _EPOCH.search(key):
            if epoch is None:
                epoch, epochs = value, count
                keys.append("epoch")
        elif _STEP.search(key) and value == int(value) and (step is None or _OF_ALL.search(key)):
            if of_all:
                continue
            step, of, whose, of_all = int(value), count, key, bool(_OF_ALL.search(key))
            aside = data not in ("", "train")
        elif not _STEP.search(key):
            values[name] = value
            keys.append(name.lower())
    if not any(map(_MEASURE.search, values)) or (step is not None and step < 0):
        return None
    if step is None and epoch is None:
        return Said(("measures", *keys[:16]), values=values)
    form = ("pairs", whose.lower(), *keys[:16])
    per_epoch = step is not None and epoch is not None
    return Said(form, step, of, epoch, epochs, values=values, per_epoch=per_epoch, aside=aside)


def _values(text: str) -> dict[str, float]:
    return {named.name: named.value for named in _named(text)}


class _Named(NamedTuple):
    """A named number. `key`: the words before it. `of`: the number after a slash. `data`: train, val or test."""

    name: str
    key: str
    of: int | None
    value: float
    data: str


def _named(text: str) -> list[_Named]:
    """Return the named numbers of a line.

    A number without a colon or an equals sign counts if its name is a step, an epoch or a measure. A word such as
    `Validation:` before a measure, or before all of them, is part of its name.
    """
    found: list[_Named] = []
    data, end = "", 0
    for match in _PAIR.finditer(text):
        key, sign = match["key"], match["sign"].strip()
        if (words := [*_OF_DATA.finditer(text, end, match.start())]) or (words := [*_OF_DATA.finditer(key)]):
            data = words[-1].lastgroup or ""
        end = match.end()
        name = _shortened(key, sign)
        if not sign and not (_STEP.search(key) or _EPOCH.search(key) or _MEASURE.search(name)):
            continue
        value = _number(match["value"])
        if value is None or _NO_VALUE.search(key):
            continue
        of = int(match["of"]) if match["of"] else None
        if of and "acc" in name.lower():  # `Accuracy: 9823/10000`
            value = value / of
        if data and _MEASURE.search(name) and not _OF_DATA.search(name) and not _NOT_OF_DATA.search(name):
            name = f"{data} {name}"
        found.append(_Named(name, key, of, value, data))
    names = Counter(each.name for each in found)
    # Names that occur twice are told apart by the words before, as in `[D loss: 0.5] [G loss: 1.2]`.
    return [
        each._replace(name=each.key) if names[each.name] > 1 and each.key.endswith(each.name) else each
        for each in found
    ]


def _shortened(key: str, sign: str) -> str:
    """Return the last words of a name that belong to it: `train loss`, `batch size:`, but not `INFO lr=`."""
    words = key.split(" ")
    if len(words) > 1 and (
        _OF_DATA.fullmatch(words[-2])
        or (sign == ":" and not _MEASURE.search(words[-1]) and words[-2].islower())
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
