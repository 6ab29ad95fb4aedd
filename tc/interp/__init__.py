"""The reference meaning of both levels of IR: graphs by the operators' numpy references, loops one scalar at a time."""

from tc.interp.graph import Observation, run_function, run_named
from tc.interp.loops import run_prim_func

__all__ = ["Observation", "run_function", "run_named", "run_prim_func"]
