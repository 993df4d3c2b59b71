#!/bin/sh
# Starts one rank in a worker's pod. Arguments: the program.
set -u
root="${DTJ_ROOT:-/dtj}"
# Read back what ssh left out; what mpirun gave this rank (OMPI_*, PMIX_*) is not in there and stays.
if [ -r "$root/run/environment" ]; then
    . "$root/run/environment"
fi

# Open MPI 5 ignores the settings of version 4 and then runs every rank on one host: never train on less than
# was asked for.
fault=""
size="${OMPI_COMM_WORLD_SIZE:-1}"
local_size="${OMPI_COMM_WORLD_LOCAL_SIZE:-1}"
host=$(hostname)
if [ "$size" != "$DTJ_WORLD_SIZE" ]; then
    fault="$DTJ_WORLD_SIZE ranks were asked for, mpirun started $size"
elif [ "$local_size" != "$DTJ_SLOTS_PER_WORKER" ]; then
    fault="$DTJ_SLOTS_PER_WORKER ranks a worker were asked for, mpirun started $local_size on $host"
elif [ "${DTJ_ROLE:-}" != worker ]; then
    fault="mpirun started a rank on $host, which is no worker"
fi
if [ -n "$fault" ]; then
    rank="${OMPI_COMM_WORLD_RANK:-0}"
    echo "dtj: $fault" >&2
    echo "dtj-rank-exit: {\"class\": \"WorldSizeMismatch\", \"message\": \"$fault\", \"rank\": $rank, \"host\": \"$host\", \"exitCode\": 78}"
    exit 78
fi

if command -v dtj-launch > /dev/null 2>&1; then
    exec dtj-launch rank -- "$@"
fi
exec "$@"
