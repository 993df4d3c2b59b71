/* The first process of a pod: holds its namespaces, reaps what is left to it, ends when told. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal_number) {
    (void)signal_number;
    _exit(0);
}

static void reap(int signal_number) {
    (void)signal_number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    struct sigaction ending = {.sa_handler = end};
    struct sigaction reaping = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
    sigaction(SIGINT, &ending, NULL);
    sigaction(SIGTERM, &ending, NULL);
    sigaction(SIGCHLD, &reaping, NULL);
    for (;;) {
        pause();
    }
}
