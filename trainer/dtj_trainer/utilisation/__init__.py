"""What the programs of a pod use: processors, memory, disk and GPUs, sampled by dtj-launch."""
