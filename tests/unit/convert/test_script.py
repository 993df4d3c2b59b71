"""The strategy of a script, by its syntax tree."""

from __future__ import annotations

import pytest

from dtj.api.errors import Unusable
from dtj.convert.script_strategy import found_in, strategy_of

H, T, P = "Horovod", "TorchDistributed", "ParameterServer"
PS, ALONE = {"ps": 1}, {"chief": 0}


@pytest.mark.parametrize(
    ("text", "strategy", "line", "replicas"),
    [
        ("import horovod.torch as hvd", H, 1, {}),
        ("def main():\n    from horovod import keras", H, 2, {}),
        ("import torch\nimport torch.distributed as dist", T, 2, {}),
        ("import torch\n\ntorch.distributed.init_process_group('nccl')", T, 3, {}),
        ("from torch import distributed as d", T, 1, {}),
        ("from torch.distributed import *", T, 1, {}),
        ("from torch.nn.parallel import DistributedDataParallel as DDP", T, 1, {}),
        ("import torch as t\nmodel = t.nn.parallel.DistributedDataParallel(net)", T, 2, {}),
        ("import lightning as L", T, 1, {}),
        ("from pytorch_lightning import Trainer", T, 1, {}),
        ("from accelerate import Accelerator", T, 1, {}),
        ("from transformers import AutoModel, Trainer", T, 1, {}),
        ("import transformers\ntrainer = transformers.Seq2SeqTrainer()", T, 2, {}),
        ("import deepspeed", T, 1, {}),
        ("import tensorflow as tf\ns = tf.distribute.ParameterServerStrategy(r)", P, 2, PS),
        ("import tensorflow as tf\ns = tf.distribute.experimental.ParameterServerStrategy()", P, 2, PS),
        ("from tensorflow.distribute import MultiWorkerMirroredStrategy", P, 1, ALONE),
        ("from tensorflow import distribute as d\nd.MultiWorkerMirroredStrategy()", P, 2, ALONE),
        ("import tensorflow.compat.v1 as tf\ntf.distribute.MultiWorkerMirroredStrategy()", P, 2, ALONE),
        # A script that can do both gets ps: without them the one could not run at all.
        (
            "import tensorflow as tf\nx = tf.distribute.MultiWorkerMirroredStrategy\n"
            "y = tf.distribute.ParameterServerStrategy",
            P, 3, PS,
        ),
    ],
)  # fmt: skip
def test_a_script_is_recognized_by_what_it_uses(
    text: str, strategy: str, line: int, replicas: dict[str, int]
) -> None:
    found = strategy_of(text.encode(), "train.py")
    assert (found.strategy, found.line, found.replicas) == (strategy, line, replicas)
    assert found.text == text.split("\n")[line - 1].strip()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch", "train.py imports no library of distributed training that shows the strategy"),
        ("from transformers import TrainingArguments", "train.py imports no library"),
        ("from torch.utils.data.distributed import DistributedSampler", "train.py imports no library"),
        ("import tensorflow as tf\ns = tf.distribute.MirroredStrategy()", "train.py imports no library"),
        ("from . import horovod", "train.py imports no library"),
        ("x = 'import horovod'  # import horovod", "train.py imports no library"),
        (
            "import horovod.torch\nimport torch.distributed",
            "several strategies: line 1, import horovod.torch: Horovod; line 2, import torch.distributed: Torch",
        ),
        ("print 'python 2'", "train.py, line 1: can't be read as Python"),
        ("x = 1\0", "train.py"),
        ("(" * 5000, "train.py"),
        ("#" * 1024**2 + "\n", "train.py has 1,048,577 bytes"),
    ],
    ids=lambda value: value[:30],
)
def test_a_script_that_does_not_tell_is_refused(text: str, message: str) -> None:
    with pytest.raises(Unusable) as error:
        strategy_of(text.encode(), "train.py")
    assert message in str(error.value)


def test_a_named_strategy_needs_no_mark() -> None:
    assert found_in(P, b"no python at all", "x").replicas == PS
    assert (
        found_in(P, b"import tensorflow as t\nt.distribute.MultiWorkerMirroredStrategy()", "x").replicas
        == ALONE
    )
    assert found_in(H, b"import horovod.torch\nimport torch.distributed", "x").line == 1
