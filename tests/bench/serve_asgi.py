"""A minimal server: uvicorn, and dtj's session in threads. `python -m tests.bench.serve_asgi PORT THREADS FOLDER`.

It has no limits, no checks, no metrics and no batches. A body is the pixels, an answer the logits.
"""

from __future__ import annotations

import asyncio
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import uvicorn

from dtj_trainer.serving.loaded_model import load
from dtj_trainer.serving.places import FolderPlace


def application(session: onnxruntime.InferenceSession, threads: int) -> Any:
    """An application of ASGI."""
    (taken,), (answered,) = session.get_inputs(), session.get_outputs()
    shape = (1, *taken.shape[1:])
    size = math.prod(shape)
    pool = ThreadPoolExecutor(threads)

    def answer(body: bytes) -> bytes:
        found: np.ndarray = session.run(
            [answered.name], {taken.name: np.frombuffer(body, np.uint8, size).reshape(shape)}
        )[0]
        return found.tobytes()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        content = await asyncio.get_running_loop().run_in_executor(pool, answer, body)
        headers = [(b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return app


def main() -> None:
    """See the module."""
    port, threads = int(sys.argv[1]), int(sys.argv[2])
    session = load(FolderPlace(Path(sys.argv[3])), threads).session
    uvicorn.run(application(session, threads), port=port, log_level="warning", lifespan="off")


if __name__ == "__main__":
    main()
