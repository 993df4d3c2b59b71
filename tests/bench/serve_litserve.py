"""LitServe with an ONNX model: `python serve_litserve.py PORT WORKERS THREADS BATCH FOLDER`, in its own environment.

Pictures come as the field `data` of a form; an answer is the five likeliest classes with their probabilities.
"""

import sys
from pathlib import Path

import litserve
import numpy as np
from fastapi import Request

from tests.bench.serve_torchserve import likeliest, pixels_of, session_of

DELAY_SECONDS = 0.002


class Classifier(litserve.LitAPI):  # type: ignore[misc]
    """See LitServe."""

    def __init__(self, folder: str, threads: int, batch: int) -> None:
        super().__init__(max_batch_size=batch, batch_timeout=DELAY_SECONDS if batch > 1 else 0.0)
        self._folder, self._threads = folder, threads

    def setup(self, device: str) -> None:
        """See LitServe: called in each worker."""
        del device
        self._session = session_of(Path(self._folder), self._threads)

    def decode_request(self, request: Request) -> np.ndarray:
        """See LitServe, which gives a worker the form in place of the request."""
        return pixels_of(request["data"].file.read())

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        """See LitServe."""
        return np.stack(inputs)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """See LitServe: one example, or a batch of them."""
        found: np.ndarray = self._session.run(None, {"pixels": x if x.ndim == 4 else x[None]})[0]
        return found if x.ndim == 4 else found[0]

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        """See LitServe."""
        return list(output)

    def encode_response(self, output: np.ndarray) -> dict[str, float]:
        """See LitServe."""
        return likeliest(output)


def main() -> None:
    """See the module."""
    port, workers, threads, batch = map(int, sys.argv[1:5])
    server = litserve.LitServer(
        Classifier(sys.argv[5], threads, batch),
        accelerator="cpu",
        workers_per_device=workers,
        fast_queue=True,
    )
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
