"""Reads steps, epochs and measures of a training from a program's output. Pure.

The output is what people print for people, so nothing is believed too early, and no longer than it fits:

* a figure counts from the second line of one form on;
* the steps come from one form, the first that has two lines. A bar that begins anew goes on where the last one ended;
* steps that go back otherwise are a contradiction, such as two programs that print at the same time. After two
  of them no step of that form counts any more.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from dtj_trainer.curves.output_lines import Said, said
from dtj_trainer.curves.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_FORMS = 64
"""Forms of lines that are remembered; of more, the one that was seen longest ago is forgotten."""
MOST_CONTRADICTIONS = 2
HUGGING_FACE = ("dictionary", "own")
"""Begins the form of the lines of transformers' Trainer, which name their own epoch."""


class _Form:
    """The lines of one form so far."""

    def __init__(self, first: Said, held: Reading | None) -> None:
        self.first: Said | None = first
        self.held = held
        """What the first line says, where the steps come from another form; told with the second line."""
        self.last = first
        self.base = 0
        """Steps of the bars, or epochs, that have ended."""
        self.contradictions = 0


class OutputReader:
    """Reads the lines of one attempt."""

    def __init__(self) -> None:
        self._forms: OrderedDict[tuple[str, ...], _Form] = OrderedDict()
        self._stepping: tuple[str, ...] | None = None
        self._step: int | None = None
        self._total: int | None = None
        self._epoch: float | None = None
        self._epochs: int | None = None
        self._from_0: bool | None = None
        self._other_bars = False
        self._told = Reading()
        self.contradicted = False
        """Whether the output has contradicted itself: no step of it is true."""

    def take(self, lines: Iterable[str]) -> list[Reading]:
        """Return what these lines say, in their order."""
        readings = []
        for line in lines:
            found = said(line)
            if found is not None:
                readings += self._believed(found)
        return readings

    def _believed(self, found: Said) -> list[Reading]:
        known = self._forms.get(found.form)
        if found.form in (("keras epoch",), ("epochs",)):
            self._epoch, self._epochs = found.epoch, found.epochs
            self._other_bars = self._other_bars or found.is_bar
            return []
        if found.form == ("keras",):  # The line before has the epoch.
            found = replace(found, epoch=self._epoch, epochs=self._epochs, from_1=True)
        if known is None:
            self._forms[found.form] = _Form(
                found, replace(self._now(found), leads=False) if self._stepping else None
            )
            if len(self._forms) > MOST_FORMS:
                oldest = next(form for form in self._forms if form != self._stepping)
                del self._forms[oldest]
            if found.form[:2] != HUGGING_FACE or self._stepping is None:
                return []
            # Beside a bar of steps, nothing else looks like this line, and each evaluation has one.
            known = self._forms[found.form]
            known.first = None
        self._forms.move_to_end(found.form)
        readings = []
        if known.first is not None:
            first, known.first = known.first, None
            readings += [known.held] if known.held else self._reading(known, first, first)
        readings += self._reading(known, found, known.last)
        known.last = found
        return readings

    def _reading(self, form: _Form, found: Said, before: Said) -> list[Reading]:
        """Return the reading of a line; none where the line says nothing new or contradicts the form."""
        epoch = self._counted(found)
        self._epoch = self._epoch if epoch is None else epoch
        if found.step is not None and self._leads(found):
            step = self._step_of(form, found, before, epoch)
            if step is None:
                return []
            self._step = step
            self._total = self._total_of(found)
        if self.contradicted or (self._step is None and self._epoch is None):
            return []
        reading = self._now(found)
        if reading == self._told or (not found.values and self._step == self._told.step):
            return []
        self._told = reading
        return [reading]

    def _now(self, found: Said) -> Reading:
        epoch = self._counted(found)
        # A line of another form may name its own step, such as that of a validation.
        own = found.form[0] == "pairs" and found.form != self._stepping and not found.per_epoch
        step = found.step if own and found.step is not None else self._step
        return Reading(
            step,
            self._total,
            self._epoch if epoch is None else epoch,
            found.examples,
            found.values,
            leads=step == self._step,
        )

    def _leads(self, found: Said) -> bool:
        """Return whether the steps come from this form; the first form with two lines takes the lead."""
        if self._stepping is None and not self.contradicted:
            self._stepping = found.form
        if found.is_bar and found.form != self._stepping:
            self._other_bars = True
        return found.form == self._stepping

    def _counted(self, found: Said) -> float | None:
        """Return the epoch, counted from 1: a program whose first epoch is 0 counts from 0."""
        epoch = found.epoch
        if epoch is None or found.from_1:
            return epoch
        if self._from_0 is None:
            self._from_0 = epoch == 0
        return epoch + 1 if self._from_0 else epoch

    def _step_of(self, form: _Form, found: Said, before: Said, epoch: float | None) -> int | None:
        """Return the step of the training, over all epochs; None where it can't be known."""
        assert found.step is not None
        if self.contradicted:
            return None
        if found.per_epoch and found.of:
            within = epoch if epoch is not None else self._epoch
            if within is not None:
                form.base = (int(within) - 1) * found.of
        elif before.step is not None and found.step < before.step and self._begins_anew(found, before):
            form.base += before.of or before.step
        step = form.base + found.step
        if self._step is not None and step < self._step:
            form.contradictions += 1
            if form.contradictions >= MOST_CONTRADICTIONS:
                self.contradicted, self._step, self._total = True, None, None
            return None
        return step

    @staticmethod
    def _begins_anew(found: Said, before: Said) -> bool:
        """Return whether a line is of the next bar, or of the next epoch."""
        if found.elapsed is not None and before.elapsed is not None:
            return found.elapsed <= before.elapsed and found.elapsed <= max(before.elapsed // 2, 1)
        return found.epoch is not None and before.epoch is not None and found.epoch > before.epoch

    def _total_of(self, found: Said) -> int | None:
        """Return the number of all steps, where the lines say it."""
        if found.of is None:
            return None
        if found.per_epoch:
            epochs = found.epochs or self._epochs
            return found.of * epochs if epochs else None
        form = self._forms[found.form]
        # The bar of Hugging Face's Trainer is of all steps, beside bars of its evaluations.
        of_all = any(name[:2] == HUGGING_FACE for name in self._forms)
        return None if form.base or (self._other_bars and not of_all) else found.of
