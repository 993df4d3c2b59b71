"""Options of mpirun over two workers, the slots of a worker, and the ranks that Open MPI 4.1 runs in each worker.

tests/trainer/test_mpirun_options.py asks mpirun itself.
"""

from __future__ import annotations

WORKERS = ["x-worker-0.x", "x-worker-1.x"]
EVEN = [
    ("", 2, 2),
    ("-np 4", 2, 2),
    ("-np 2 --map-by node", 2, 1),
    ("-np 2 -bynode", 4, 1),
    ("-pernode", 4, 1),
    ("-N 3", 4, 3),
    ("-np 6 -npernode 3", 4, 3),
    ("--map-by ppr:3:node", 4, 3),
    ("--map-by ppr:3:node:oversubscribe", 1, 3),
    ("--oversubscribe -np 8", 1, 4),
    ("--oversubscribe -np 6", 2, 3),
    ("--oversubscribe -np 6 -npernode 3", 1, 3),
    ("--mca rmaps_base_oversubscribe 1 -np 8", 1, 4),
    ("--mca rmaps_base_mapping_policy ppr:2:node", 2, 2),
    ("--hostfile /etc/mpi/hostfile -np 2", 1, 1),
    ("-H x-worker-0.x:2,x-worker-1.x:2 -np 4", 2, 2),
    ("-H x-worker-0.x,x-worker-1.x", 1, 1),
    ("-H x-worker-0.x,x-worker-1.x", 2, 1),
]
UNEVEN = [
    ("-np 3", 2, [2, 1]),
    ("-np 2", 2, [2, 0]),
    ("-np 1", 1, [1, 0]),
    ("-np 3 -npernode 2", 2, [2, 1]),
    ("--oversubscribe -np 5", 1, [3, 2]),
]
NEVER = [
    ("-np 8", 2),
    ("-np 5 -npernode 2", 4),
    ("-npernode 4", 2),
    ("-H x-worker-0.x,x-worker-1.x -np 4", 2),
]
