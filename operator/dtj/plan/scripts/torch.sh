# The strategy.sh of TorchDistributed where dtj starts the ranks, sourced by start.sh. The environment of the pod is
# that of its first rank, so that an image without dtj-launch can run one rank.
launch=ranks
if [ "${DTJ_SLOTS_PER_WORKER:-1}" -gt 1 ] && ! command -v dtj-launch > /dev/null 2>&1; then
    echo "dtj: the image has no dtj-launch, which starts the $DTJ_SLOTS_PER_WORKER ranks of this pod: add it to the \
image (docs/torch-distributed.md, Images without dtj_trainer), let the command start them (torchrun train.py), or set torch.procsPerWorker to 1" >&2
    exit 78
fi
