"""Tile registers (AMX) are used by leave of the operating system: their state is 8 KB a thread, which a process must ask for."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18
"""A system call of Linux on x86-64, what it is to do, and the number of the state. Source: Linux, Documentation/arch/x86/xstate.rst."""


@cache
def may_use_tiles() -> bool:
    """Ask for this process's leave to use tile registers, once; whether it has it.

    All its threads have it then, those that run already, too, and processes that it forks; a program that it starts asks again. The answer
    is no on other systems than Linux, before Linux 5.16, and where a thread handles signals on a stack too small for the state.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0)
