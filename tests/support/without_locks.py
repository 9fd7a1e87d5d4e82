"""A file system without locks, for one process: a preloaded library that refuses them.

Such as Lustre mounted without `flock` (ENOSYS), NFS without a lock daemon (ENOLCK), and others
(EOPNOTSUPP). Memory without a file keeps its locks, as it does there.
"""

import os
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int refused(int file) {
    char link[64], name[16] = {0};
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    return readlink(link, name, sizeof name - 1) < 0 || strncmp(name, "/memfd:", 7) != 0;
}

static int refuse(void) {
    errno = atoi(getenv("REFUSED_LOCKS"));
    return -1;
}

int flock(int file, int operation) {
    int (*real)(int, int) = dlsym(RTLD_NEXT, "flock");
    return refused(file) ? refuse() : real(file, operation);
}

static int is_lock(int command) {
    return command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK ||
           command == F_OFD_SETLKW;
}

int fcntl64(int file, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    int (*real)(int, int, ...) = dlsym(RTLD_NEXT, "fcntl64");
    return is_lock(command) && refused(file) ? refuse() : real(file, command, argument);
}

int fcntl(int file, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return fcntl64(file, command, argument);
}
"""


def built_library(folder: Path) -> Path:
    """Compile the library into a folder."""
    source, library = folder / "without_locks.c", folder / "without_locks.so"
    source.write_text(SOURCE)
    command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def without_locks(library: Path, number: int) -> dict[str, str]:
    """The environment of a process whose locks are refused with an error's number."""
    return {**os.environ, "LD_PRELOAD": str(library), "REFUSED_LOCKS": str(number)}
