#!/bin/sh
# Starts one rank in a worker's pod. Arguments: the program.
set -u
root="${DTJ_ROOT:-/dtj}"
rank="${OMPI_COMM_WORLD_RANK:-${HOROVOD_RANK:-0}}"
if [ -n "${DTJ_LOCAL_WORKERS:-}" ]; then
    # All workers are on this machine: the rank's number decides whose workspace it uses.
    root="$DTJ_LOCAL_WORKERS$((rank / DTJ_SLOTS_PER_WORKER))"
fi
# Restore the variables that ssh dropped. mpirun's variables of this rank (OMPI_*, PMIX_*) are not in the file and
# stay.
if [ -r "$root/run/environment" ]; then
    . "$root/run/environment"
fi

# Open MPI 5 ignores the settings of version 4 and would run every rank on one host. Refuse to train with fewer ranks
# than requested.
fault=""
size="${OMPI_COMM_WORLD_SIZE:-${HOROVOD_SIZE:-1}}"
local_size="${OMPI_COMM_WORLD_LOCAL_SIZE:-${HOROVOD_LOCAL_SIZE:-1}}"
ranks_a_host="$DTJ_SLOTS_PER_WORKER"
[ -z "${DTJ_LOCAL_WORKERS:-}" ] || ranks_a_host="$DTJ_WORLD_SIZE"
host=$(hostname)
if [ "$size" != "$DTJ_WORLD_SIZE" ]; then
    fault="$DTJ_WORLD_SIZE ranks were asked for, mpirun started $size"
elif [ "$local_size" != "$ranks_a_host" ]; then
    fault="$ranks_a_host ranks a host were asked for, mpirun started $local_size on $host"
elif [ "${DTJ_ROLE:-}" != worker ]; then
    fault="mpirun started a rank on $host, which is no worker"
fi
if [ -n "$fault" ]; then
    echo "dtj: $fault" >&2
    echo "dtj-rank-exit: {\"class\": \"WorldSizeMismatch\", \"message\": \"$fault\", \"rank\": $rank, \"host\": \"$host\", \"exitCode\": 78}"
    exit 78
fi

if command -v dtj-launch > /dev/null 2>&1; then
    exec dtj-launch rank -- "$@"
fi
exec "$@"
