#!/bin/sh
# Starts a replica. dtj-launch does the work if the image has it; otherwise the program runs without it. A strategy
# whose pods need more has a strategy.sh.
# Arguments: the program (of each rank).
set -u
config="${DTJ_CONFIG_DIR:-/etc/dtj}"
uid=""
if command -v id > /dev/null 2>&1; then
    uid=$(id -u)
    # OpenShift gives each namespace a uid that no image knows, and ssh, sshd and programs look up its name. The user
    # is in group 0, so that an image prepared by `chmod g=u /etc/passwd` lets this script add an entry.
    if ! id -un > /dev/null 2>&1 && [ -z "${DTJ_LOCAL_RUN:-}" ] && [ -w /etc/passwd ]; then
        echo "dtj-$uid:*:$uid:$(id -g)::${DTJ_ROOT:-/dtj}:/bin/sh" >> /etc/passwd
    fi
fi

# A strategy.sh may override both: the kind of process that dtj-launch runs, and what runs without dtj-launch.
launch=replica
without_dtj_launch() {
    if command -v tini > /dev/null 2>&1; then
        exec tini -- "$@"
    fi
    # Process 1 ignores SIGTERM unless it handles it. A program as process 1 would use up the pod's whole grace
    # period.
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

if [ -n "${DTJ_CODE_ARCHIVE:-}" ]; then
    fault="the image has no dtj_trainer, which unpacks spec.code: use an image of dtj, add dtj_trainer to the image, \
or put the program into the image"
    echo "dtj: $fault" >&2
    printf '{"class": "CodeUnusable", "message": "%s", "exitCode": 78}' "$fault" > /dev/termination-log
    exit 78
fi
without_dtj_launch "$@"
