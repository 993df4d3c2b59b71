"""The options by which `accelerate launch` knows the machines of a job. It reads none of them from the environment.

Source: accelerate 1.15, `commands/launch.py` and `utils/launch.py`. With `--multi_gpu`, accelerate starts processes
by torchrun's code, on machines without a GPU too.
"""

from __future__ import annotations

from dtj.api.torch_command import Launcher

ENV_USE_CPU = "ACCELERATE_USE_CPU"
"""Without this variable, processes that find no GPU train alone, whatever RANK and WORLD_SIZE say."""
VARIABLES = {
    "--num_machines": "PET_NNODES",
    "--num_processes": "WORLD_SIZE",
    "--machine_rank": "PET_NODE_RANK",
    "--main_process_ip": "MASTER_ADDR",
    "--main_process_port": "MASTER_PORT",
}
"""The variable of a worker's container with the value of an option."""
_KINDS = ("multi-gpu", "cpu", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "config-file")
"""Options by which accelerate knows how to start the processes. A configuration file says so too."""


def missing_options(launcher: Launcher, workers: int, procs: int) -> list[str]:
    """Return the options that an `accelerate launch` lacks, with references as the kubelet expands them.

    workers: pods of the job. procs: ranks in each pod.
    """
    given = launcher.options
    missing = [
        f"{option}=$({variable})"
        for option, variable in VARIABLES.items()
        if option.replace("_", "-") not in given
    ]
    if workers * procs > 1 and not any(f"--{kind}" in given for kind in _KINDS):
        missing.insert(0, "--multi_gpu")
    # DeepSpeed's own launchers reach the other machines by ssh. A configuration file may ask for DeepSpeed.
    deepspeed = "--use-deepspeed" in given or "--config-file" in given
    if workers > 1 and deepspeed and "--deepspeed-multinode-launcher" not in given:
        missing.append("--deepspeed_multinode_launcher=standard")
    return missing
