# Horovod's strategy.sh, which start.sh reads: workers serve ssh, and the launcher starts the ranks there by mpirun.
launch=$DTJ_ROLE
umask 077
# A session opened by ssh has none of the pod's environment: rank.sh reads it back from here.
# (`command`: else a shell that can't write there ends at once, with an exit code of its own.)
command export -p > "${DTJ_ROOT:-/dtj}/run/environment" || exit 78
umask 022
if [ -n "$uid" ] && ! id -un > /dev/null 2>&1; then
    echo "dtj: the image has no user with uid $uid, which ssh needs: add one, set runAsUser in the template, or make \
/etc/passwd writable for group 0 (chmod g=u /etc/passwd)" >&2
    exit 78
fi
if [ -n "$uid" ] && [ -z "${DTJ_LOCAL_WORKERS:-}" ] && [ -r /etc/passwd ]; then
    # The entry that CRI-O adds for an unknown uid, where none can be added above, has no shell: sshd refuses its user.
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
    # A launcher that is made together with the workers: they may still get their nodes and images.
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
    # By its full path, mpirun finds its own daemon on the workers too, wherever it is installed.
    mpirun=$(command -v "${DTJ_MPIRUN:-mpirun}") || {
        echo "dtj: the image has no ${DTJ_MPIRUN:-mpirun}, which a Horovod launcher needs: install openmpi-bin\
${DTJ_MPIRUN:+, or set DTJ_MPIRUN to where its mpirun is}" >&2
        exit 127
    }
    # Open MPI 4 takes its hosts and its ssh from the environment that the operator gives.
    exec "$mpirun" -np "$DTJ_WORLD_SIZE" --bind-to none --map-by slot --mca pml ob1 --mca btl ^openib,ofi \
        /bin/sh "$config/rank.sh" "$@"
}
