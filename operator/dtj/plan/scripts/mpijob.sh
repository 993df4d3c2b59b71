#!/bin/sh
# Starts a replica in a pod of mpi-operator. Its key pair has no known_hosts: all hosts share this one host key.
# Arguments: the program (of each rank).
set -u
printf '* %s\n' "$(cat /etc/dtj-ssh/id_rsa.pub)" > "${DTJ_ROOT:-/dtj}/run/known_hosts" || exit 78
exec /bin/sh "${DTJ_CONFIG_DIR:-/etc/dtj}/start.sh" "$@"
