"""A process that writes checkpoints by `torch.save`, from memory that it shares with the rank.

The executor of `torch.distributed.checkpoint` that saves in a process needs a process group, which Horovod's ranks
and single processes do not have.
"""

from __future__ import annotations

import io
import multiprocessing
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.multiprocessing  # Lets connections carry tensors in shared memory.
from torch import Tensor

from dtj_trainer.train.writer_process import WriterProcess, connected, serve

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class _Request(NamedTuple):
    path: str
    plain: bytes
    """The pickled state, with a number in place of each tensor."""
    tensors: list[Tensor] | None
    """The tensors by number, in shared memory; None: those of the request before, whose values have changed."""


class SaveProcess:
    """The rank's handle of the process. Construct it in the main thread: the process ends with that thread."""

    def __init__(self) -> None:
        self._process = WriterProcess(__name__)
        # Send the rank's authkey: multiprocessing passes the file descriptors of tensors only to processes with the
        # same key.
        self._process.connection.send_bytes(bytes(multiprocessing.current_process().authkey))
        self._places: Sequence[tuple[object, ...]] = []

    def write(self, path: Path, state: Any) -> None:
        """Let the process write `state` to `path`, and wait for it. The tensors of `state` are in shared memory.

        Raises what `WriterProcess.ask` raises.
        """
        stream = io.BytesIO()
        pickler = _Pickler(stream)
        pickler.dump(state)
        places = [(each.data_ptr(), each.dtype, each.shape, each.stride()) for each in pickler.tensors]
        # Send tensors only if their addresses have changed: to send a thousand tensors takes a tenth of a second, and
        # the stager usually copies into the same memory again.
        tensors = None if places == self._places else pickler.tensors
        self._process.ask(_Request(str(path), stream.getvalue(), tensors))
        self._places = places

    def close(self) -> None:
        """End the process."""
        self._process.close()


class _Pickler(pickle.Pickler):
    """Collects tensors, and pickles a number in place of each."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.tensors: list[Tensor] = []

    def persistent_id(self, given: Any) -> int | None:
        """Return the number of a tensor; None for anything else."""
        if not isinstance(given, Tensor):
            return None
        self.tensors.append(given)
        return len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    """Puts tensors in place of their numbers."""

    def __init__(self, stream: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(stream)
        self._tensors = tensors

    def persistent_load(self, number: Any) -> Tensor:
        """Return the tensor with this number."""
        tensor: Tensor = self._tensors[number]
        return tensor


def main() -> None:
    """Run the process."""
    connection = connected()
    torch.set_num_threads(1)
    multiprocessing.current_process().authkey = connection.recv_bytes()
    tensors: list[Tensor] = []

    def write(request: _Request) -> None:
        if request.tensors is not None:
            tensors[:] = request.tensors
        torch.save(_Unpickler(io.BytesIO(request.plain), tensors).load(), request.path)

    serve(connection, write)


if __name__ == "__main__":
    main()
