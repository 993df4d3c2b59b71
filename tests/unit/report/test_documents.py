"""A report as Markdown, as an HTML page and as pictures."""

from __future__ import annotations

import io
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.image import imread

from dtj.api.errors import Unusable
from dtj.report.documents import as_html, as_markdown
from dtj.report.pictures import DOTS_PER_INCH, SIZE, pictures_of
from dtj.report.report import Report, make_report
from dtj.report.run import Run, read_metrics
from dtj_trainer.contract.distribution import install_line
from tests.unit.support.training_runs import even_run

REAL = Path(__file__).with_name("runs")


@pytest.fixture
def report() -> Report:
    killed = Run("horovod-killed", read_metrics((REAL / "horovod-killed/metrics.jsonl").read_bytes()).rows)
    return make_report([killed, even_run("a|<b>", 10, accuracy=0.5), even_run("c", 12)])


def test_markdown_has_a_line_for_each_run(report: Report) -> None:
    text = as_markdown(report, ["over-time.png"])
    assert re.search(r"^\| run \| started \(UTC\) \| model \|.*\| global step/s \|", text, re.MULTILINE)
    assert re.search(
        r"^\| a\\\|&lt;b&gt; \| [-0-9]+ [:0-9]+ \| cnn \| 128 \| 1 \| 10\.00 ± 0\.00 \|", text, re.MULTILINE
    )
    assert re.search(r"^\| horovod-killed \| [-0-9]+ [:0-9]+ \| cnn \| 64 \| 2 \|", text, re.MULTILINE)
    assert "![over time](over-time.png)" in text


def test_a_name_adds_neither_cells_nor_elements_to_the_markdown() -> None:
    name = "a\\|b\n| <img src=x> ![c](http://x) `d` \x1b[2J"
    lines = as_markdown(make_report([even_run(name, 10), even_run("e", 10)])).splitlines()

    (row,) = [line for line in lines if line.startswith("| a")]
    assert row.startswith(
        "| a\\\\\\|b \\| &lt;img src=x&gt; !\\[c\\](http://x) \\`d\\`  \\[2J | 2026-11-21 10:00:00 | cnn |"
    )
    assert not [line for line in lines if "<" in line]


class Page(HTMLParser):
    """Which elements there are, what they refer to, and that all are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_but_itself(report: Report) -> None:
    text = as_html(report, pictures_of(report))
    page = Page(text)
    assert page.open == []
    assert page.tags.count("table") == 2
    assert len(page.references) == 2
    assert all(reference.startswith("data:image/png;base64,") for reference in page.references)
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<script", re.sub(r'src="[^"]*"', "", text))
    assert "prefers-color-scheme: dark" in text
    assert "a|&lt;b&gt;" in text


def test_pictures_have_their_size_and_show_something(report: Report) -> None:
    pictures = pictures_of(report)
    assert list(pictures) == ["time-and-accuracy.png", "over-time.png"]
    for content in pictures.values():
        pixels = imread(io.BytesIO(content), format="png")
        assert pixels.shape[:2] == (round(SIZE[1] * DOTS_PER_INCH), round(SIZE[0] * DOTS_PER_INCH))
        drawn = (pixels[..., :3].min(axis=2) < 0.9).mean()
        assert 0.005 < drawn < 0.9
        colours = {tuple(colour) for colour in (pixels[..., :3].reshape(-1, 3)[::7] * 255).astype(int)}
        assert (0, 0x72, 0xB2) in colours, "the first run's"


def test_a_comparison_has_a_picture_of_its_own() -> None:
    runs = [even_run(f"{n}", 10 * n, workers=n, model="vgg16") for n in (1, 2)]
    pictures = pictures_of(make_report(runs, baseline="1"))
    assert list(pictures) == ["time-and-accuracy.png", "over-time.png", "speed-up.png"]
    pixels = imread(io.BytesIO(pictures["speed-up.png"]), format="png")
    assert 0.005 < (pixels[..., :3].min(axis=2) < 0.9).mean() < 0.9


def test_a_restart_is_marked_and_nothing_is_drawn_between_two_attempts(report: Report) -> None:
    from dtj.report.pictures import _rates

    times, rates = _rates(report.summaries[0], 1.0)
    holes = [place for place, time in enumerate(times) if time != time]
    assert len(holes) == 1, "between the attempts"
    assert times[holes[0] - 1] < 6 < 16 < times[holes[0] + 1]
    assert all(1000 < rate < 10000 for rate in rates if rate == rate)


def test_pictures_write_numbers_as_the_tables_do() -> None:
    from matplotlib.figure import Figure

    from dtj.report.pictures import _draw_over_time

    figure = Figure()
    _draw_over_time(figure, make_report([even_run("fast", 300)]))
    rates, _ = figure.axes
    assert [label.get_text() for label in rates.get_yticklabels()][:2] == ["0", "10,000"]


def test_runs_without_any_figure_can_be_drawn() -> None:
    assert len(pictures_of(make_report([Run("empty", [])]))) == 2


def test_without_matplotlib_the_remedy_is_said(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Unusable) as caught:
        pictures_of(report)
    assert caught.value.remedy == install_line("report")
