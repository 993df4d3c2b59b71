# Horovod's strategy.sh, sourced by start.sh: workers serve ssh, and the launcher starts the ranks by mpirun.
launch=$DTJ_ROLE
umask 077
# An ssh session does not inherit the pod's environment. rank.sh reads it from this file.
# (`command`: without it, a shell that can't write the file would exit at once with its own code.)
command export -p > "${DTJ_ROOT:-/dtj}/run/environment" || exit 78
umask 022
if [ -n "$uid" ] && ! id -un > /dev/null 2>&1; then
    echo "dtj: the image has no user with uid $uid, which ssh needs: add one, set runAsUser in the template, or make \
/etc/passwd writable for group 0 (chmod g=u /etc/passwd)" >&2
    exit 78
fi
if [ -n "$uid" ] && [ -z "${DTJ_LOCAL_WORKERS:-}" ] && [ -r /etc/passwd ]; then
    # Where no entry could be added above, CRI-O's entry for an unknown uid has no shell, and sshd refuses its user.
    while IFS=: read -r name _ entry _ _ _ shell; do
        if [ "$entry" = "$uid" ] && [ "${shell##*/}" = nologin ]; then
            echo "dtj: user $name (uid $uid) has no shell, which sshd needs: give it one in the image's /etc/passwd, or \
make that file writable for group 0 (chmod g=u /etc/passwd)" >&2
            exit 78
        fi
    done < /etc/passwd
fi

without_dtj_launch() {
    if [ "$launch" = worker ]; then
        sshd=$(PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v sshd) || {
            echo "dtj: the image has no sshd, which a Horovod worker needs: install openssh-server" >&2
            exit 127
        }
        exec "$sshd" -De -f "$config/sshd_config"
    fi
    # The launcher may have been created together with the workers, which may still wait for nodes and images.
    if [ -n "${DTJ_LAUNCHER_WAITS:-}" ]; then
        seconds=${DTJ_PEER_TIMEOUT_SECONDS:-300}
        until=$(($(date +%s) + ${seconds%%.*}))
        while read -r host _; do
            until ssh -n -F "$config/ssh_config" "$host" true > /dev/null 2>&1; do
                if [ "$(date +%s)" -ge "$until" ]; then
                    echo "dtj: $host does not answer ssh" >&2
                    exit 1
                fi
                sleep 1
            done
        done < "$config/hostfile"
    fi
    # Started by its full path, mpirun finds its own daemon on the workers, wherever Open MPI is installed.
    mpirun=$(command -v "${DTJ_MPIRUN:-mpirun}") || {
        echo "dtj: the image has no ${DTJ_MPIRUN:-mpirun}, which a Horovod launcher needs: install openmpi-bin\
${DTJ_MPIRUN:+, or set DTJ_MPIRUN to where its mpirun is}" >&2
        exit 127
    }
    # Open MPI 4 reads hosts and ssh options from variables that the operator sets.
    exec "$mpirun" -np "$DTJ_WORLD_SIZE" --bind-to none --map-by slot --mca pml ob1 --mca btl ^openib,ofi \
        /bin/sh "$config/rank.sh" "$@"
}
