"""The container's entry point: peers, sshd or mpirun, the user's program, artifacts, progress."""
