"""Reads steps, epochs and measures of a training from a program's output. Pure.

The output is written for people, so that a line may mean something else. These rules decide what counts:

* a figure counts from the second line of one form on;
* the steps come from one form, the first that has two lines. A bar that begins anew, and a training that does, goes
  on where the last one ended;
* a bar that has no measures may have been of other work, such as a download: a form with lines of a training that
  begins after its end takes its place;
* steps that go back otherwise are a contradiction, such as two programs that print at the same time. After two
  of them no step of that form counts any more.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from dtj_trainer.curves.output_lines import Said, said
from dtj_trainer.curves.reading import TrainingReading

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_FORMS = 64
"""Forms of lines that are remembered; of more, the one that was seen longest ago is forgotten."""
MOST_CONTRADICTIONS = 2
LONGER = 10
"""Seconds after which a bar is that of the training, if the one before it was shorter by half and had no measures."""
HUGGING_FACE = ("dictionary", "own")
"""Begins the form of the lines of transformers' Trainer, which name their own epoch."""


class _Form:
    """The lines of one form so far."""

    def __init__(self, first: Said, held: TrainingReading | None, line: int) -> None:
        self.began = self.seen = line
        """The places in the output of the form's first line and of its last."""
        self.begin = first
        self.first: Said | None = first
        self.held = held
        """The reading of the first line where the steps come from another form. The reading counts once a second line
        of this form confirms it."""
        self.last = first
        self.base = 0
        """How many steps the bars, or epochs, had that have ended."""
        self.before = 0
        """How many steps the trainings had that have ended, where lines name their epoch."""
        self.ends = 0
        """How often the last step of a bar was seen."""
        self.measures = bool(first.values)
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
        self._first_epoch: float | None = None
        self._anew = False
        """Whether Keras began to train anew."""
        self._keras = 0
        """The number of steps of the bar that Keras trains by; the one of an evaluation may differ."""
        self._withdrawn = False
        """Whether the steps so far were of other work, and no reading has said so yet."""
        self._other_bars = False
        self._told = TrainingReading()
        self.contradicted = False
        """Whether the output has contradicted itself, so that its steps can't be trusted."""
        self.lines = 0
        """Lines so far that say anything."""

    def take(self, lines: Iterable[str]) -> list[TrainingReading]:
        """Return what these lines say, in their order."""
        readings = []
        for line in lines:
            found = said(line)
            if found is not None:
                readings += self._believed(found)
        return readings

    def _believed(self, found: Said) -> list[TrainingReading]:
        self.lines += 1
        if found.form == ("keras epoch",):
            self._begin_epoch(found)
            return []
        if found.form == ("epochs",):
            self._epoch, self._epochs = found.epoch, found.epochs
            self._other_bars = True
            return []
        if found.form == ("keras",) and not self._is_of_training(found):
            return []
        if found.form == ("keras",):  # Keras prints the epoch in the line before.
            found = replace(found, epoch=self._epoch, epochs=self._epochs, from_1=True)
        if found.form[0] == "measures" and self._epoch is None:
            return []
        known = self._forms.get(found.form)
        if known is None:
            held = replace(self._now(found), leads=False) if self._stepping else None
            known = self._forms[found.form] = _Form(found, held, self.lines)
            if len(self._forms) > MOST_FORMS:
                oldest = next(form for form in self._forms if form != self._stepping)
                del self._forms[oldest]
            if found.form[:2] != HUGGING_FACE or self._stepping is None:
                return []
            # Count the form of an evaluation from its first line on, although other forms need a second line: beside
            # a bar of steps, no other output has this form, and an evaluation prints only one such line.
            known.first = None
        self._forms.move_to_end(found.form)
        known.ends += found.step is not None and found.step == found.of
        known.measures = known.measures or bool(found.values)
        if self._takes_over(known, found):
            self._stepping = None
            self._step = self._total = None
            self._withdrawn, known.held = True, None
        readings = []
        if known.first is not None:
            first, known.first = known.first, None
            readings += [known.held] if known.held else self._reading(known, first, first)
        readings += self._reading(known, found, known.last)
        known.last, known.seen = found, self.lines
        return readings

    def _begin_epoch(self, found: Said) -> None:
        """Take the epoch of a line that has nothing else: the measures follow."""
        epoch = self._counted(found)
        if self._first_epoch is None:
            self._first_epoch = epoch
        elif epoch == self._first_epoch and (self._epoch or 0) > (epoch or 0):
            self._anew = True
        self._epoch, self._epochs = epoch, None if self._from_0 else found.epochs
        self._keras = 0

    def _is_of_training(self, found: Said) -> bool:
        """Return whether a bar of Keras is of the training and not of an evaluation: the first bar of an epoch is."""
        assert found.of is not None
        if not self._keras:
            self._keras = found.of
        known = self._forms.get(found.form)
        evaluates = self._first_epoch is not None and known is not None and known.last.epoch == self._epoch
        ended = evaluates and known is not None and known.last.step == known.last.of
        return found.of == self._keras and not (ended and found.step != found.of)

    def _takes_over(self, form: _Form, found: Said) -> bool:
        """Return whether the steps so far were of other work, which had ended before this form's first line."""
        leader = self._forms.get(self._stepping) if self._stepping else None
        if leader is None or leader is form or self._has_lines_of_hugging_face or form.began < leader.seen:
            return False
        last = leader.last
        if (
            not last.is_bar
            or leader.measures
            or last.epoch is not None
            or leader.base
            or last.step != last.of
        ):
            return False
        if found.aside:
            return False
        if not found.is_bar or found.values or found.epoch is not None:
            return found.step is not None or found.epoch is not None
        elapsed, before = found.elapsed or 0, last.elapsed or 0
        return form.ends > 1 or elapsed >= max(LONGER, 2 * before)

    @property
    def _has_lines_of_hugging_face(self) -> bool:
        return any(name[:2] == HUGGING_FACE for name in self._forms)

    def _reading(self, form: _Form, found: Said, before: Said) -> list[TrainingReading]:
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
        self._told, self._withdrawn = reading, False
        return [reading]

    def _now(self, found: Said) -> TrainingReading:
        epoch = self._counted(found)
        # A line of another form may name its own step, such as that of a validation.
        own = found.form[0] == "pairs" and found.form != self._stepping and not found.per_epoch
        step = found.step if own and found.step is not None else self._step
        return TrainingReading(
            step,
            self._total,
            self._epoch if epoch is None else epoch,
            found.examples,
            found.values,
            leads=step == self._step,
            anew=self._withdrawn,
        )

    def _leads(self, found: Said) -> bool:
        """Return whether the steps come from this form; the first form with two lines takes the lead."""
        if self._stepping is None and not self.contradicted and not found.aside:
            self._stepping = found.form
            if found.is_bar and not found.per_epoch and self._epochs and self._epoch and found.of:
                self._forms[found.form].base = (int(self._epoch) - 1) * found.of
        if found.is_bar and found.form != self._stepping:
            self._other_bars = True
        return found.form == self._stepping

    def _counted(self, found: Said) -> float | None:
        """Return the epoch of a line, counted from 1, also of a program that counts from 0."""
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
        within = (epoch if epoch is not None else self._epoch) if found.per_epoch else None
        if within is not None and found.of:
            if self._trains_anew(form, found, before):
                form.before, self._anew = self._step or 0, False
            form.base = form.before + (int(within) - 1) * found.of
        elif before.step is not None and found.step < before.step and self._begins_anew(form, found, before):
            form.base += before.of or before.step
        step = form.base + found.step
        if self._step is not None and step < self._step:
            form.contradictions += 1
            if form.contradictions >= MOST_CONTRADICTIONS:
                self.contradicted, self._step, self._total = True, None, None
            return None
        return step

    def _trains_anew(self, form: _Form, found: Said, before: Said) -> bool:
        """Return whether a line that names its epoch is the first of another training, such as that of a fold."""
        if self._anew:
            return found.form == ("keras",)
        begin = form.begin
        if before.epoch is None or begin.epoch is None or found.epoch != begin.epoch or begin.step is None:
            return False
        return before.epoch > begin.epoch and (found.step or 0) <= begin.step

    @staticmethod
    def _begins_anew(form: _Form, found: Said, before: Said) -> bool:
        """Return whether a line is of the next bar, of the next epoch, or of the next training."""
        if found.form == ("keras",):
            return before.step == before.of
        if found.elapsed is not None and before.elapsed is not None:
            return found.elapsed <= before.elapsed and found.elapsed <= max(before.elapsed // 2, 1)
        if found.epoch is not None and before.epoch is not None:
            return found.epoch > before.epoch
        begin = form.begin.step
        return found.form[0] in ("pairs", "dictionary") and begin is not None and (found.step or 0) <= begin

    def _total_of(self, found: Said) -> int | None:
        """Return the number of all steps, where the lines say it."""
        if found.of is None:
            return None
        form = self._forms[found.form]
        if found.per_epoch:
            epochs = found.epochs or self._epochs
            return found.of * epochs if epochs and not form.before else None
        if found.is_bar and self._epochs:
            return found.of * self._epochs
        # The bar of Hugging Face's Trainer is of all steps, beside bars of its evaluations.
        return None if form.base or (self._other_bars and not self._has_lines_of_hugging_face) else found.of
