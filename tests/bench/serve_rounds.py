"""What `make bench-serve` measures in a round, and the figures of all rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.bench import serve_rivals, serve_servers
from tests.bench.serve_load import Load, Measured, measure, request
from tests.bench.serve_models import MODELS, Model, binary_bodies, files, json_bodies, pixels
from tests.bench.serve_servers import Server
from tests.bench.serve_session import session_rate
from tests.cluster.progress import note

CLIENTS = (1, 32)
COMPARED = ("resnet18-28", "resnet18-32")
"""The models that rivals serve too."""
KINDS = ("binary", "picture", "json")
Figures = dict[str, float]
_FORM = "bench"


@dataclass(frozen=True)
class Row:
    """One measurement of a round: its name, and what makes it."""

    name: str
    measured: Callable[[], Measured]


@dataclass
class Bench:
    """The servers that run, the rows of a round, and the rivals that don't run with their errors."""

    folder: Path
    threads: int
    seconds: float
    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _running: ExitStack = field(default_factory=ExitStack)

    @property
    def models(self) -> Mapping[str, Path]:
        """The models' folders by name."""
        return {each.name: self.folder / each.name for each in MODELS}

    def __enter__(self) -> Bench:
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        enter = self._running.enter_context
        try:
            served = enter(serve_servers.dtj(self.models, self.threads, work / "dtj.log"))
            single = enter(serve_servers.dtj(self.models, self.threads, work / "single.log", "--max-batch=1"))
            for model in MODELS:
                self._add_session(model)
                self._add_dtj(model, served)
                if model.network == "cnn":
                    bodies = requests(model)["binary"]
                    self._add(f"without batches {model.name}, binary", single, 32, bodies)
                    folder = self.models[model.name]
                    least = enter(serve_servers.minimal(folder, self.threads, work / "minimal.log"))
                    plain = [request("POST", "/", one.tobytes()) for one in pixels(model)]
                    self._add(f"minimal {model.name}, binary", least, 32, plain)
            self._add_rivals(work)
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _add(self, name: str, server: Server, clients: int, bodies: list[bytes]) -> None:
        load = Load(server.port, clients, bodies, self.seconds)

        def measured() -> Measured:
            with server.going():
                return measure(load)

        self.rows.append(Row(f"{name}, {clients} clients", measured))

    def _add_session(self, model: Model) -> None:
        for batch in (1, 32):

            def measured(batch: int = batch) -> Measured:
                rate = session_rate(self.models[model.name], self.threads, batch, self.seconds)
                return Measured(rate, 1 / rate, 1 / rate)

            self.rows.append(Row(f"session {model.name}, batches of {batch}", measured))

    def _add_dtj(self, model: Model, server: Server) -> None:
        compared = model.name in COMPARED
        for kind, bodies in requests(model).items():
            for clients in CLIENTS if compared else (32,):
                if compared or kind != "json":
                    self._add(f"dtj {model.name}, {kind}", server, clients, bodies)

    def _add_rivals(self, work: Path) -> None:
        some = {
            name: folder for name, folder in self.models.items() if name in ("resnet18-28", "resnet18-32")
        }
        for setting in serve_rivals.settings(self.threads):
            label = f"litserve ({setting})"
            with self._named(label):
                for model in (each for each in MODELS if each.name in some):
                    log = work / f"{label}.log".replace(" ", "-")
                    server = self._running.enter_context(
                        serve_rivals.litserve(some[model.name], setting, log)
                    )
                    forms = [_form("/predict", body) for body in files(pixels(model))]
                    self._add(f"{label} {model.name}, picture", server, 32, forms)
            label = f"torchserve ({setting})"
            with self._named(label):
                below = work / label.replace(" ", "-")
                server = self._running.enter_context(
                    serve_rivals.torchserve(some, setting, below, work / f"{below.name}.log")
                )
                for model in (each for each in MODELS if each.name in some):
                    bodies = requests(model)["picture"]
                    self._add(f"{label} {model.name}, picture", server, 32, bodies)

    def _named(self, label: str) -> _Failing:
        return _Failing(label, self.failures)


class _Failing:
    """A block whose RuntimeError or OSError is told, and ends nothing."""

    def __init__(self, label: str, failures: list[str]) -> None:
        self._label, self._failures = label, failures

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if isinstance(error, RuntimeError | OSError):
            self._failures.append(f"{self._label} does not run: {error}")
            return True
        return False


def requests(model: Model) -> dict[str, list[bytes]]:
    """Whole requests to dtj with different pictures, by the kind of their bodies."""
    found = pixels(model)
    infer = f"/v2/models/{model.name}/infer"
    length, bodies = binary_bodies(found)
    headers = {"Inference_Header_Content_Length": str(length), "Content_Type": "application/octet-stream"}
    return {
        "binary": [request("POST", infer, body, **headers) for body in bodies],
        "picture": [request("PUT", f"/predictions/{model.name}", body) for body in files(found)],
        "json": [
            request("POST", infer, body, Content_Type="application/json") for body in json_bodies(found)
        ],
    }


def _form(path: str, file: bytes) -> bytes:
    head = f'--{_FORM}\r\nContent-Disposition: form-data; name="data"; filename="picture"\r\n\r\n'
    body = head.encode() + file + f"\r\n--{_FORM}--\r\n".encode()
    return request("POST", path, body, Content_Type=f"multipart/form-data; boundary={_FORM}")


def rounds(bench: Bench, count: int) -> dict[str, list[Measured]]:
    """Measure each row once in each round. A row that fails is told, and left out from then on."""
    found: dict[str, list[Measured]] = {}
    failed = set[str]()
    for number in range(count):
        for row in _live(bench.rows, failed):
            try:
                measured = row.measured()
            except RuntimeError as error:
                failed.add(row.name)
                bench.failures.append(f"{row.name} does not run: {error}")
                continue
            found.setdefault(row.name, []).append(measured)
            note(f"round {number + 1}: {row.name}: {measured.rate:.0f}/s, p99 {measured.p99 * 1e3:.1f} ms")
    return {name: each for name, each in found.items() if name not in failed}


def _live(rows: list[Row], failed: set[str]) -> Iterator[Row]:
    return (row for row in rows if row.name not in failed)


def middle(found: Mapping[str, list[Measured]]) -> Figures:
    """The medians of the rates."""
    return {name: median(each.rate for each in measured) for name, measured in found.items()}
