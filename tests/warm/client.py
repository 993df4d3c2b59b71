"""The `python` that a test runs in place of a cold interpreter. `tests.warm` writes its settings above."""

import array
import marshal
import os
import signal
import socket
import sys

PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM")


def cold(reason):
    with open(f"{FOLDER}/{COLD}", "a") as log:
        log.write(f"{reason}: {sys.argv[1:]}\n")
    os.execv(PYTHON, [PYTHON, *sys.argv[1:]])


def main():
    arguments = sys.argv[1:]
    while arguments and arguments[0] == "-u":
        arguments = arguments[1:]
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in {"-c", "-m"}):
        cold("an option")
    for name, value in os.environ.items():
        if name in READ_LATER or not name.startswith(IMPORT_SETTINGS):
            continue
        if SETTINGS.get(name) != value:
            cold(f"{name}={value}")
    for name, here in NAMESPACES.items():
        if os.readlink(f"/proc/self/ns/{name}") != here:
            cold(f"{name} namespace")
    rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or os.getpid()
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(f"{FOLDER}/{int(rank) % 2}.socket")
    except OSError as error:
        cold(str(error))
    # From now on the program runs in another process. Signals that come before its start wait in the connection.
    for name in PASSED_ON:
        number = getattr(signal, name)
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: server.send(bytes([number])))
    signal.signal(KILL, lambda *_: server.send(bytes([signal.SIGKILL])))
    umask = os.umask(0)
    os.umask(umask)
    request = marshal.dumps(
        (arguments, dict(os.environ), os.getcwd(), umask, os.getpriority(os.PRIO_PROCESS, 0))
    )
    files = array.array("i", [0, 1, 2])
    server.sendmsg([len(request).to_bytes(4, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    server.sendall(request)
    for file in range(3):
        os.close(file)
    answer = server.recv(4)
    if len(answer) < 4:
        os.kill(os.getpid(), signal.SIGKILL)
    code = int.from_bytes(answer, "little", signed=True)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
