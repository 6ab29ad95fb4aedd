"""What rules and code generation may do to the floats of a PrimFunc, as an attribute of it."""

from __future__ import annotations

from tc.ir.loop import PrimFunc
from tc.ir.node import replace
from tc.passes.manager import loop_pass


@loop_pass
def mark_numerics(func: PrimFunc, *, numerics: str = "default") -> PrimFunc:
    """Note on the PrimFunc, as attribute "numerics", what may be done to its floats, unless all is as usual."""
    if numerics == "default":
        return func
    return replace(func, attrs=(*func.attrs, ("numerics", numerics)))
