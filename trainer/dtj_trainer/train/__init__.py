"""Training without a framework: the loop, its options, batches, schedule, reports and checkpoints."""
