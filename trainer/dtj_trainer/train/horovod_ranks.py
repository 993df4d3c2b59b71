"""The exchange between the ranks of a Horovod job, whatever the framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dtj_trainer.train.protocols import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class HorovodRanks(Ranks):
    """See Ranks. Call `hvd.init` first. `hvd` is the module horovod.torch or horovod.tensorflow.

    `to_tensor` converts an array to a tensor of that framework.
    """

    def __init__(self, hvd: Any, to_tensor: Callable[[np.ndarray], Any]) -> None:
        self.rank, self.size = hvd.rank(), hvd.size()
        self._hvd = hvd
        self._to_tensor = to_tensor

    def total(self, values: Sequence[float], name: str) -> list[float]:
        """See Ranks."""
        tensor = self._to_tensor(np.array(values, np.float64))
        summed: list[float] = np.asarray(self._hvd.allreduce(tensor, op=self._hvd.Sum, name=name)).tolist()
        return summed

    def average(self, tensor: Any, name: str) -> Any:
        """Average a tensor over all ranks."""
        return self._hvd.allreduce(tensor, op=self._hvd.Average, name=name)

    def broadcast(self, value: Any) -> Any:
        """See Ranks."""
        return self._hvd.broadcast_object(value, root_rank=0, name="object")

    def gather(self, value: Any, name: str) -> list[Any]:
        """See Ranks."""
        gathered: list[Any] = self._hvd.allgather_object(value, name=name)
        return gathered
