"""The page of `dtj serve` in a real Chromium.

* a picture by file, by drop, by drawing with a mouse and with keys; the next picture
* several models
* the token
* answers that are errors
* its policy, axe-core in light and dark, a narrow window
* the route that shows what the model saw
"""

from __future__ import annotations

import base64
import io
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from tests.browser import NoBrowser, grounds, inaccessible, overflow, program, until_true, visiting
from tests.patience import PATIENCE
from tests.trainer.conftest import until
from tests.trainer.served_models import (
    LABELS,
    SIZE,
    Client,
    file_of,
    pixels,
    probabilities_of,
    served,
    write_model,
)

from dtj_trainer.serving.description import Preprocessing
from dtj_trainer.serving.torchserve import prepared, shown

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FilePayload, Page

TOKEN = "s3cret/+%41ü"  # Another one if it were decoded twice, or sent as Latin-1.


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of four models: grey, inverted and in colour; one takes tensors alone."""
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "grey", 1)
    form = {"size": [SIZE, SIZE], "channels": 1, "layout": "NCHW", "range": [0, 255], "invert": True}
    write_model(folder / "inverted", 2, preprocessing=form, labels=None)
    write_model(folder / "colour", 3, channels=3)
    write_model(folder / "tensors", 4, preprocessing=None)
    return folder


@pytest.fixture(scope="module")
def client(models: Path) -> Iterator[Client]:
    with served(f"grey={models / 'grey'}", "--max-body=1") as ready:
        yield ready


@pytest.fixture(scope="module")
def several(models: Path) -> Iterator[Client]:
    names = ("grey", "inverted", "colour", "tensors")
    with served(*(f"{name}={models / name}" for name in names)) as ready:
        yield ready


def url(client: Client, more: str = "") -> str:
    return f"http://127.0.0.1:{client.port}/{more}"


def file(seed: int, channels: int = 1) -> FilePayload:
    return {
        "name": f"{seed}.png",
        "mimeType": "image/png",
        "buffer": file_of(pixels(seed, channels)),
    }


def opened(page: Page) -> None:
    """Wait until the page can take pictures."""
    page.get_by_label("Choose pictures").wait_for()


def give(page: Page, *files: FilePayload) -> None:
    opened(page)
    page.get_by_label("Choose pictures").set_input_files(files)


def told(page: Page, text: str) -> None:
    """Wait for the line that tells the answers."""
    page.locator("#told").filter(has_text=re.compile(text)).wait_for()


def answer_of(page: Page, model: str = "grey") -> Any:
    return page.get_by_role("article", name=f"Answer of {model}", exact=True)


def saw(page: Page, model: str = "grey") -> np.ndarray:
    """The picture that the page shows as the one that the model saw."""
    return decoded(saw_source(page, model))


def saw_source(page: Page, model: str = "grey") -> str:
    """The address of that picture, which has its content."""
    return str(answer_of(page, model).get_by_role("img").get_attribute("src"))


def decoded(source: str) -> np.ndarray:
    head, _, content = source.partition(",")
    assert head == "data:image/png;base64"
    values = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def bars(page: Page, model: str = "grey") -> list[tuple[str, str]]:
    """The names and shares of the five bars; each bar is as long as its share."""
    found = []
    for row in answer_of(page, model).get_by_role("listitem").all():
        name, share = row.locator(":scope > span:not(.track)").all_inner_texts()
        width, whole = row.locator(".track").evaluate(
            "track => [track.firstChild.getBoundingClientRect().width, track.clientWidth]"
        )
        assert width / whole == pytest.approx(float(share.removesuffix(" %")) / 100, abs=0.01)
        found.append((name, share))
    return found


def wanted(picture: np.ndarray, seed: int, names: list[str] = LABELS) -> list[tuple[str, str]]:
    values = probabilities_of(picture, seed)
    return [(names[int(place)], f"{100 * values[place]:.1f} %") for place in np.argsort(-values)[:5]]


def test_a_file_gets_five_bars_beside_what_the_model_saw(browser: Browser, client: Client) -> None:
    with visiting(browser, url(client)) as visit:
        give(visit.page, file(7))
        name, share = wanted(pixels(7), 1)[0]
        told(visit.page, f"^7.png: grey says {name}, {share}.$")
        assert bars(visit.page) == wanted(pixels(7), 1)
        assert np.array_equal(saw(visit.page), pixels(7))
        assert "8 × 8 pixels, grey" in answer_of(visit.page).inner_text()
        version = client("GET", "/models/grey").json[0]["modelVersion"]
        assert f"Version {version}, after 1 steps" in answer_of(visit.page).inner_text()
        assert visit.page.get_by_role("img", name="The file 7.png").is_visible()
        assert not visit.page.get_by_role("group", name="Models").is_visible()


def test_several_files_come_one_after_the_other(browser: Browser, client: Client) -> None:
    with visiting(browser, url(client)) as visit:
        give(visit.page, file(1), file(2))
        told(visit.page, "^1.png: grey says")
        visit.page.get_by_role("button", name="Next picture (1 more)").click()
        told(visit.page, "^2.png: grey says")
        assert np.array_equal(saw(visit.page), pixels(2))
        visit.page.get_by_role("button", name="Next picture", exact=True).click()
        told(visit.page, "^No picture yet")
        assert answer_of(visit.page).count() == 0
        assert visit.page.get_by_label("Choose pictures").evaluate(
            "input => input === document.activeElement"
        )


def test_a_file_can_be_dropped_anywhere(browser: Browser, client: Client) -> None:
    make = """content => {
      const dropped = new DataTransfer();
      dropped.items.add(new File([Uint8Array.from(content)], "dropped.png", { type: "image/png" }));
      return dropped;
    }"""
    with visiting(browser, url(client)) as visit:
        opened(visit.page)
        data = visit.page.evaluate_handle(make, list(file_of(pixels(3))))
        visit.page.dispatch_event("h1", "drop", {"dataTransfer": data})
        told(visit.page, "^dropped.png: grey says")
        assert np.array_equal(saw(visit.page), pixels(3))


def test_a_drawing_by_mouse_is_asked_about_after_each_line(browser: Browser, client: Client) -> None:
    with visiting(browser, url(client)) as visit:
        opened(visit.page)
        box = visit.page.get_by_label("Draw a digit or a shirt")
        place = box.bounding_box()
        assert place
        mouse = visit.page.mouse
        mouse.move(place["x"] + 20, place["y"] + 140)
        mouse.down()
        mouse.move(place["x"] + 260, place["y"] + 140, steps=4)
        mouse.up()
        told(visit.page, "^Your drawing: grey says")
        first = saw(visit.page)[0]
        assert (first[3:5, 1:7] > 60).all()  # The line across the middle, 20 of 280 pixels wide.
        assert (first[[0, 1, 6, 7]] == 0).all()
        assert bars(visit.page) == wanted(first[None], 1)
        source = saw_source(visit.page)
        box.click(position={"x": 140, "y": 20})
        asked_again(visit.page, source)
        second = saw(visit.page)[0]
        assert second[0, 3:5].min() > 20  # A dot.
        source = saw_source(visit.page)
        visit.page.get_by_label("black on white").check()
        asked_again(visit.page, source)
        assert np.abs(saw(visit.page)[0].astype(int) + second - 255).max() <= 1
        remove = visit.page.get_by_role("button", name="Remove the last line")
        remove.click()
        remove.click()
        told(visit.page, "^No picture yet")
        assert remove.is_disabled()


def asked_again(page: Page, before: str) -> None:
    """Wait for the answer about another drawing than the one with this picture."""
    until_true(page, "before => document.querySelector('.saw')?.src !== before", before)
    told(page, "^Your drawing: grey says")


def test_the_keyboard_is_enough(browser: Browser, client: Client) -> None:
    with visiting(browser, url(client)) as visit:
        opened(visit.page)
        keys = visit.page.keyboard

        def reach(role: str, name: str) -> None:
            target = visit.page.get_by_role(role, name=name)  # type: ignore[arg-type]
            for _ in range(12):
                if target.evaluate("target => target === document.activeElement"):
                    return
                keys.press("Tab")
            pytest.fail(f"Tab does not reach {name}")

        reach("application", "Draw a digit or a shirt")
        assert visit.page.locator("#pen").is_visible()
        for _ in range(12):
            keys.press("ArrowLeft")
        keys.press("Space")
        assert visit.page.locator("#pen-says").inner_text() == "Pen down, column 2, row 14 of 28"
        for _ in range(6):
            keys.press("Shift+ArrowRight")
        keys.press("Space")
        told(visit.page, "^Your drawing: grey says")
        assert (saw(visit.page)[0, 3:5, 1:7] > 60).all()
        reach("button", "Next picture")
        keys.press("Enter")
        told(visit.page, "^No picture yet")
        assert visit.page.get_by_role("application").evaluate("box => box === document.activeElement")


def test_several_models_answer_side_by_side(browser: Browser, several: Client) -> None:
    with visiting(browser, url(several)) as visit:
        give(visit.page, file(5))
        told(visit.page, "^5.png: grey says .* inverted says class .* colour says")
        grey, colour = pixels(5), np.repeat(pixels(5), 3, 0)
        numbers = [f"class {number}" for number in range(10)]
        for name, picture, seed in (("grey", grey, 1), ("inverted", 255 - grey, 2), ("colour", colour, 3)):
            assert np.array_equal(saw(visit.page, name), picture)
            assert bars(visit.page, name) == wanted(picture, seed, numbers)
        assert "8 × 8 pixels, grey, inverted" in answer_of(visit.page, "inverted").inner_text()
        assert "8 × 8 pixels, in colour" in answer_of(visit.page, "colour").inner_text()
        left, right = (answer_of(visit.page, name).bounding_box() for name in ("grey", "inverted"))
        assert left["y"] == right["y"]
        assert visit.page.get_by_label("tensors (takes tensors, no pictures)").is_disabled()
        visit.page.get_by_role("checkbox", name="grey").uncheck()
        told(visit.page, "^5.png: inverted says")
        assert answer_of(visit.page, "grey").count() == 0


@pytest.fixture(scope="module")
def guarded(models: Path) -> Iterator[Client]:
    (models / "token").write_text(TOKEN)
    with served(f"grey={models / 'grey'}", f"--token-file={models / 'token'}") as ready:
        yield ready


def test_the_token_of_the_address_is_sent_and_taken_out_of_it(browser: Browser, guarded: Client) -> None:
    with visiting(browser, url(guarded, "#token=s3cret/+%2541%C3%BC")) as visit:
        give(visit.page, file(7))
        told(visit.page, "^7.png: grey says")
        assert visit.page.url == url(guarded)


def test_the_page_asks_for_a_token(browser: Browser, guarded: Client) -> None:
    assert guarded("GET", "/models").status == 401
    with visiting(browser, url(guarded)) as visit:
        field = visit.page.get_by_label("Token of the server")
        field.fill("another")
        field.press("Enter")
        alert = visit.page.get_by_role("alert")
        alert.filter(has_text="The server refuses this token.").wait_for()
        assert inaccessible(visit.page) == []
        visit.faults.clear()  # Those of axe-core.
        field.fill(TOKEN)
        visit.page.get_by_role("button", name="Use the token").click()
        give(visit.page, file(7))
        told(visit.page, "^7.png: grey says")
        assert not field.is_visible()
        assert not alert.is_visible()


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (file_of(pixels(0)) + bytes(2 << 20), r"The picture is too large \(413\)"),
        (b"GIF89a", r"The file is neither PNG nor JPEG \(415\)"),
        (b"\x89PNG\r\n\x1a\n", r"The server refuses \(400\): the picture can't be read"),
    ],
    ids=["413", "415", "400"],
)
def test_a_refused_picture_says_why(browser: Browser, client: Client, content: bytes, shown: str) -> None:
    with visiting(browser, url(client)) as visit:
        give(visit.page, {"name": "given", "mimeType": "image/png", "buffer": content})
        told(visit.page, f"^given: grey has no answer. .*{shown}")
        assert re.search(shown, answer_of(visit.page).inner_text())


def test_a_full_server_is_asked_again(browser: Browser, models: Path) -> None:
    with (
        served(f"grey={models / 'grey'}", "--max-waiting=1") as client,
        visiting(browser, url(client)) as visit,
    ):
        opened(visit.page)
        with socket.create_connection(("127.0.0.1", client.port), timeout=30 * PATIENCE) as other:
            other.sendall(b"POST /predictions/grey HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nbegun")
            until(lambda: "dtj_serve_held_bytes 5.0" in client.metrics, "the other request is held")
            give(visit.page, file(7))
            told(visit.page, r"no room for more requests \(429\). Ask again in 1 s.")
        until(lambda: "dtj_serve_held_bytes 0.0" in client.metrics, "the other request is gone")
        visit.page.get_by_role("button", name="Ask again").click()
        told(visit.page, "^7.png: grey says")


def test_axe_finds_nothing(browser: Browser, several: Client) -> None:
    with visiting(browser, url(several)) as visit:
        opened(visit.page)
        assert grounds(visit.page) == ["rgb(21, 24, 28)", "rgb(255, 255, 255)"]
        give(visit.page, {"name": "given", "mimeType": "image/png", "buffer": b"?"})
        told(visit.page, "^given: grey has no answer")
        assert inaccessible(visit.page) == []
        give(visit.page, file(7), file(8))
        told(visit.page, "^7.png: grey says")
        assert inaccessible(visit.page) == []
        visit.faults.clear()  # Those of axe-core.


def test_a_narrow_window_needs_no_scrolling_sideways(browser: Browser, several: Client) -> None:
    with visiting(browser, url(several), width=400) as visit:
        give(visit.page, {**file(7), "name": f"{'long' * 40}.png"})
        told(visit.page, "grey says")
        assert overflow(visit.page) == 0
        widths = visit.page.evaluate(
            "[...document.querySelectorAll('body *')].map(e => e.getBoundingClientRect().right)"
        )
        assert max(widths) <= 400


def test_the_rig_sees_what_no_page_may_do(browser: Browser, client: Client) -> None:
    page = "<html><body><img src='https://other.test/a.png'><script>broken()</script></body></html>"
    policy = {"Content-Security-Policy": "script-src 'none'", "Content-Type": "text/html"}
    with (
        pytest.raises(AssertionError) as failed,
        visiting(
            browser,
            url(client),
            before=lambda to: to.route("**/*", lambda route: route.fulfill(body=page, headers=policy)),
        ) as visit,
    ):
        assert any(fault.startswith("image-alt: ") for fault in inaccessible(visit.page))
    for fault in (
        "Content-Security-Policy: script-src-elem",
        "request to another server: https://other.test/a.png",
    ):
        assert fault in str(failed.value)


def test_a_machine_without_a_browser_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoBrowser, match="apt-get install chromium-headless-shell"):
        program()


def test_the_pages_files_forbid_everything_that_it_does_not_need(client: Client) -> None:
    for path in ("/", "/page/page.js", "/page/drawing.js", "/page/page.css"):
        answer = client("GET", path)
        assert answer.status == 200
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        policy = answer.headers["Content-Security-Policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'"} <= set(
            policy
        )
        assert "unsafe" not in " ".join(policy)
        assert b"//" not in re.sub(rb"^\s*//.*$|// .*$", b"", answer.body, flags=re.M)  # No other server.


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("invert", [False, True], ids=["as it is", "inverted"])
def test_what_the_model_saw_is_the_example_without_its_scale(
    layout: Any, channels: int, invert: bool
) -> None:
    mean, deviation = (0.5, 0.4, 0.3)[:channels], (0.1, 0.2, 0.4)[:channels]
    form = Preprocessing(SIZE, channels, layout, (-1.0, 1.0), mean, deviation, invert=invert)
    given = pixels(9, channels)
    found = shown(prepared(given, form, np.dtype(np.float32))[None], form)
    seen = decoded(f"data:image/png;base64,{base64.b64encode(found).decode()}")
    assert np.array_equal(seen, 255 - given if invert else given)
