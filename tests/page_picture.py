"""`make page-picture`: docs/pictures/serving.png, the page of `dtj serve` with two trained models; no cluster.

The example job trains `cnn` on Fashion-MNIST, once with small and once with large batches. A shirt is drawn with the
mouse.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests import fashion_mnist
from tests.browser import chromium, install, visiting
from tests.trainer.served_models import served

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/pictures/serving.png"
JOB = ROOT / "manifests/examples/fashion-mnist-horovod.yaml"
BATCHES = {"small-batches": 64, "large-batches": 512}
LABELS = "T-shirt,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
SHIRT = (
    (70, 90), (105, 55), (125, 68), (155, 68), (175, 55), (210, 90), (190, 115), (175, 100), (175, 230), (105, 230),
    (105, 100), (90, 115), (70, 90), (110, 80), (140, 100), (140, 210), (120, 210), (120, 110), (160, 90), (160, 210),
)  # fmt: skip
"""The way of the mouse in the box: the outline, and some lines of its inside."""
COLOURS = 48
"""The page needs few, and its picture is then a third as large."""


def trained(folder: Path, name: str, batch: int) -> Path:
    """Train a model and export it. Return its folder."""
    job = folder / f"{name}.yaml"
    job.write_text(JOB.read_text().replace("--batch-size=64", f"--batch-size={batch}"))
    data = fashion_mnist.folder()
    _dtj(folder, "run", job, "--name", name, "--data", data, "--quiet")
    _dtj(folder, "artifacts", "get", name, "model", "--local")
    model = folder / name / "model"
    _dtj(folder, "export", model, "--labels", LABELS)
    return model


def _dtj(folder: Path, *words: object) -> None:
    program = Path(sys.executable).with_name("dtj")
    environment = {**os.environ, "DTJ_HOME": str(folder / "home")}
    subprocess.run([program, *map(str, words)], check=True, cwd=folder, env=environment)


def shoot(url: str) -> None:
    """Draw a shirt, and take the picture of the answers."""
    with chromium() as browser, visiting(browser, url, width=900) as visit:
        page = visit.page
        box = page.get_by_label("Draw a digit or a shirt")
        box.scroll_into_view_if_needed()
        place = box.bounding_box()
        assert place
        for number, (x, y) in enumerate(SHIRT):
            page.mouse.move(place["x"] + x, place["y"] + y, steps=4)
            if not number:
                page.mouse.down()
        page.mouse.up()
        page.locator("#told").filter(has_text="says").wait_for()
        page.screenshot(path=PICTURE, full_page=True)
    picture = Image.open(PICTURE).convert("P", palette=Image.Palette.ADAPTIVE, colors=COLOURS)
    picture.save(PICTURE, optimize=True)


def main() -> None:
    """Train, serve and take the picture."""
    install()
    with tempfile.TemporaryDirectory(prefix="dtj-page-") as name:
        models = [f"{each}={trained(Path(name), each, batch)}" for each, batch in BATCHES.items()]
        with served(*models) as client:
            shoot(f"http://127.0.0.1:{client.port}/")


if __name__ == "__main__":
    main()
