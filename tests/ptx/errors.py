"""What can go wrong in a kernel, as the interpreter of PTX reports it.

    PtxError
      PtxSyntaxError       the text is not PTX that we can read
      Unsupported          an instruction, modifier or operand outside of the subset; never skipped silently
      KernelFault          the kernel did something wrong, at an instruction and a thread
        OutOfBounds        an access outside of every array, variable or window
        Misaligned         an address that is no multiple of the access's size
        UnwrittenRead      a read of shared bytes that nobody wrote, or whose copy is still in flight
        Race               two unordered accesses to one shared byte, one of them writing
        DivergentBarrier   some threads wait at a barrier that others never reach
        Deadlock           threads wait for something that nobody will do
        AsyncMisuse        registers or shared memory used against the rules of asynchronous instructions
        Trap               `trap`, or a failed device assertion
"""

from __future__ import annotations


class PtxError(Exception):
    """Base of all that the interpreter raises on purpose."""


class PtxSyntaxError(PtxError):
    """The text is not PTX that we can read."""


class Unsupported(PtxError):
    """An instruction, modifier or operand outside of the subset."""


class KernelFault(PtxError):
    """The kernel did something wrong; `position` is the place of the faulty lane among the active lanes, when known."""

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class OutOfBounds(KernelFault):
    """An access outside of every array, variable or window."""


class Misaligned(KernelFault):
    """An address that is no multiple of the size of the access."""


class UnwrittenRead(KernelFault):
    """A read of shared bytes that nobody wrote, or whose copy is still in flight."""


class Race(KernelFault):
    """Two unordered accesses to one shared byte, one of them writing."""


class DivergentBarrier(KernelFault):
    """Some threads wait at a barrier that others never reach."""


class Deadlock(KernelFault):
    """Threads wait for something that nobody will do."""


class AsyncMisuse(KernelFault):
    """Registers or shared memory used against the rules of asynchronous instructions."""


class Trap(KernelFault):
    """`trap`, or a failed device assertion."""
