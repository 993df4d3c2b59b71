#!/bin/sh
# Starts a replica: dtj-launch does the work where the image has it, else the program runs as it is. A strategy whose
# pods need more than that has a strategy.sh.
# Arguments: the program (of each rank).
set -u
config="${DTJ_CONFIG_DIR:-/etc/dtj}"
uid=""
if command -v id > /dev/null 2>&1; then
    uid=$(id -u)
    # OpenShift gives each namespace a uid of its own, which no image knows: ssh, sshd and programs ask for its name.
    # An image is prepared for that by `chmod g=u /etc/passwd`, as such a user is in group 0.
    if ! id -un > /dev/null 2>&1 && [ -z "${DTJ_LOCAL_RUN:-}" ] && [ -w /etc/passwd ]; then
        echo "dtj-$uid:*:$uid:$(id -g)::${DTJ_ROOT:-/dtj}:/bin/sh" >> /etc/passwd
    fi
fi

# What a strategy.sh may set: the kind of process that dtj-launch runs, and what runs without dtj-launch.
launch=replica
without_dtj_launch() {
    if command -v tini > /dev/null 2>&1; then
        exec tini -- "$@"
    fi
    # As process 1 a program would ignore SIGTERM, unless it handles it, and be in the way for its whole grace.
    program="" told=""
    trap 'told=yes; [ -z "$program" ] || kill -TERM "$program"' TERM INT
    "$@" &
    program=$!
    [ -z "$told" ] || kill -TERM "$program"
    wait "$program"
    code=$?
    while kill -0 "$program" 2> /dev/null; do
        wait "$program"
        code=$?
    done
    exit "$code"
}
if [ -r "$config/strategy.sh" ]; then
    . "$config/strategy.sh"
fi

if command -v dtj-launch > /dev/null 2>&1; then
    if command -v tini > /dev/null 2>&1; then
        exec tini -- dtj-launch "$launch" -- "$@"
    fi
    exec dtj-launch "$launch" -- "$@"
fi

without_dtj_launch "$@"
