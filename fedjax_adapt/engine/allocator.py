"""Memory that is freed after one round and wanted again by the next."""

import ctypes
import os
import sys

VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
MOST = 2**31 - 1  # bytes; what glibc accepts
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of its settings, from malloc.h

_told = False


def keep_memory() -> bool:
    """Makes glibc keep freed memory for the next round, in place of giving it back.

    XLA asks it for large blocks in every round. By default it gets them from Linux, which
    clears every page: on a CPU that is a good part of a round. `fedjax-adapt` calls this
    itself; a program of your own may, before its first round. It does nothing where there
    is no glibc, or one of the variables MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_
    is set.

    Returns:
      Whether freed memory is kept now, by this or by those variables.
    """
    global _told
    if keeps_memory() or sys.platform != "linux":
        return keeps_memory()
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    _told = all(mallopt(name, MOST) for name in (TRIM_THRESHOLD, MMAP_THRESHOLD))
    return _told


def keeps_memory() -> bool:
    """Whether freed memory is kept, as far as this process knows."""
    return _told or any(name in os.environ for name in VARIABLES)
