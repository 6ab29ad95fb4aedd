"""A graph with every float computed in double precision: what two runtimes that round differently are both measured against."""

from __future__ import annotations

import numpy as np

from tc.errors import UnsupportedError
from tc.ir import dtype as dtypes
from tc.ir.dtype import DType, from_numpy
from tc.ir.graph import AttrValue, Call, CallExtern, Function, TensorConst, TensorVar
from tc.ir.module import IRModule
from tc.ir.node import Node, replace, substitute, transform, walk
from tc.ir.types import TensorType


def widen_floats(module: IRModule) -> IRModule:
    """The module with f64 for every float type: parameters, values, constants, and the types that casts convert to.

    What the model itself rounds by converting to a narrower float is not rounded any more. UnsupportedError for kernels given as loops.
    """
    for func in module.prim_funcs:
        raise UnsupportedError(f"{func.name} is given as loops, whose floats have the widths that they have")
    return IRModule(tuple(map(_widen_function, module.graph_functions)))


def _widen_function(func: Function) -> Function:
    variables = {node: None for node in walk(func) if isinstance(node, TensorVar)}
    wide = {var: replace(var, type=transform(var.type, _widen_node)) for var in variables}
    return transform(substitute(func, wide), _widen_node)


def _widen_node(node: Node) -> Node | None:
    match node:
        case TensorType(dtype=dtype) if dtype.is_float:
            return replace(node, dtype=dtypes.f64)
        case TensorConst(value=value) if from_numpy(value.dtype).is_float:
            return replace(node, value=value.astype(np.float64))
        case Call() | CallExtern():
            return replace(node, attrs=tuple((name, _widen_attr(value)) for name, value in node.attrs))
    return None


def _widen_attr(value: AttrValue) -> AttrValue:
    if isinstance(value, tuple):
        return tuple(map(_widen_attr, value))
    return dtypes.f64 if isinstance(value, DType) and value.is_float else value


def widen_array(array: np.ndarray) -> np.ndarray:
    """The array in double precision when it holds floats."""
    return array.astype(np.float64) if from_numpy(array.dtype).is_float else array
