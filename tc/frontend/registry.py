"""Whatever a model is given as, to a module: the front end for it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

import onnx

from tc.errors import LoweringError, UserError, check_word
from tc.frontend.dims import Dim
from tc.frontend.imported import Imported
from tc.frontend.onnx import load_model
from tc.ir.index_ranges import check_indices
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ir.verify import verify
from tc.ops.restate import restate

Model = str | os.PathLike[str] | bytes | onnx.ModelProto | IRModule


def check_model(model: object) -> None:
    """UserError for what no model can be made of."""
    if not isinstance(model, (str, os.PathLike, bytes, bytearray, memoryview, onnx.ModelProto, IRModule)):
        kinds = "the path of an ONNX file, its bytes, an onnx.ModelProto or a tc IRModule"
        inner = "; its .model is one" if isinstance(getattr(model, "model", None), onnx.ModelProto) else ""
        raise UserError(f"the model is a {type(model).__name__}, must be {kinds}{inner}")


def check_words(numerics: object, on_unsupported: object, verify: object = "auto") -> None:
    """UserError for an option of compilation that is none of the words it may be."""
    check_word("numerics", numerics, ("default", "strict"))
    check_word("verify", verify, ("auto", "always", "never"))
    check_word("on_unsupported", on_unsupported, ("fallback", "error"))


def import_model(
    model: Model,
    dims: Mapping[str, Dim | int] | None = None,
    on_unsupported: str = "fallback",
    assume_equal: bool = True,
    overridden: Collection[str] = (),
) -> Imported:
    """The front end for whatever `model` is."""
    check_model(model)
    if isinstance(model, IRModule):
        verify(model)
        kernel = next((func.name for func in model.graph_functions if dict(func.attrs).get("primitive")), None)
        if kernel is not None:
            raise LoweringError(f"{kernel} is a kernel of a graph that is fused already; interpret it, or compile the graph from before")
        functions = (check_indices(func) if isinstance(func, PrimFunc) else func for func in model.functions)
        return Imported(restate(replace(model, functions=tuple(functions))), (), ())
    return load_model(model, dims=dims, on_unsupported=on_unsupported, assume_equal=assume_equal, overridden=overridden)
