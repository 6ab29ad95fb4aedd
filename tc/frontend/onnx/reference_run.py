"""What a fallback does when the model runs: ONNX's reference evaluator, in which each node that we have operators for is theirs.

Loops of changing sizes and chains behind values of unknown rank run here whole. ONNX's implementation of many nodes in them is of the
newest opset only, or wrong; with concrete shapes nearly all of them are calls of our operators, whose references are tested.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tc.errors import InputError, TcError, UnsupportedError
from tc.frontend.onnx.fallback import REFERENCE_FUNCTION, dtype_name, kind_of
from tc.frontend.onnx.load import load_model
from tc.frontend.onnx.reference_ops import corrected_ops
from tc.frontend.onnx.tensors import dtype_of
from tc.frontend.signature import PACKED_NAMES, STRING, StringTable, current_strings, pack_value, unpack_value
from tc.ir.arith import evaluate
from tc.ir.expr import Expr, Var
from tc.ir.graph import Attrs, AttrValue, Call, Function, Loop, TensorConst, TensorVar
from tc.ir.node import walk
from tc.ops.registry import get_op, register_python_function

Results = Sequence[Any]


@functools.lru_cache(maxsize=256)
def _evaluator(data: bytes) -> Any:
    import onnx
    from onnx.reference import ReferenceEvaluator

    class Evaluator(ReferenceEvaluator):  # type: ignore[misc]
        def __init__(self, proto: Any, **given: Any) -> None:  # ONNX's makes those of functions without new_ops
            super().__init__(proto, **{"new_ops": list(corrected_ops()), **given})

        def _init(self) -> None:
            super()._init()
            for node in self.rt_nodes_:
                if not node.need_context() and not node.has_linked_attribute:
                    node.run = functools.partial(_run_node, node.onnx_node, dict(self.opsets), node.run)

    model = onnx.ModelProto()
    model.ParseFromString(data)
    return Evaluator(model)


def _run_node(node: Any, opsets: dict[str, int], known: Callable[..., Results], *inputs: Any, **context: Any) -> Results:
    """The results of a node on these inputs, by our operators where they can; else by `known`."""
    given = zip(node.input, inputs, strict=True)
    if any(name and value is None for name, value in given):  # the content of an empty optional
        return known(*inputs, **context)
    if all(value is None or (isinstance(value, np.ndarray) and value.dtype.kind not in "OUS") for value in inputs):
        found = run_by_operators(node, opsets, inputs)
        if found is not None:
            return found
    return known(*inputs, **context)


def run_by_operators(node: Any, opsets: dict[str, int], inputs: Sequence[np.ndarray | None]) -> Results | None:
    """The results of a node on constants by the references of our operators; None for a node that is more than calls of them."""
    from onnx import helper, numpy_helper

    arrays = {name: array for name, array in zip(node.input, inputs, strict=True) if name and array is not None}
    names = [name for name in node.output if name]
    constants = [numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name) for name, array in arrays.items()]
    graph = helper.make_graph([node], "node", [], [helper.make_empty_tensor_value_info(name) for name in names], constants)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        imported = load_model(helper.make_model(graph, opset_imports=imports), on_unsupported="error")
    except UnsupportedError:
        return None
    if imported.signature is not None:
        return None
    function = imported.module["main"]
    assert isinstance(function, Function)
    try:
        made = dict(zip(names, _run(function, {}), strict=True))
    except _NotOnlyCallsError:
        return None
    return tuple(made.get(name) for name in node.output)


class _NotOnlyCallsError(Exception):
    """A function has more than calls with known attributes and loops of them."""


def _run(function: Function, values: dict[Any, Any]) -> list[Any]:
    for binding in function.bindings:
        match binding.value:
            case Call() as call if not _has_dims(call.attrs):
                results = _call(call, values)
            case Loop() as loop if not _has_dims(loop.trip_count):
                results = _loop(loop, len(binding.targets), values)
            case _:
                raise _NotOnlyCallsError
        values.update(zip(binding.targets, results, strict=True))
    return [_value(atom, values) for atom in function.results]


def _loop(loop: Loop, count: int, values: dict[Any, Any]) -> Results:
    """A loop of at least one iteration."""
    carried = [_value(atom, values) for atom in loop.init]
    limit = None if loop.trip_count is None else int(evaluate(loop.trip_count, {}))
    going, i, stacks = bool(_value(loop.condition, values)), 0, []
    while going and (limit is None or i < limit):
        own = zip(loop.body.params, (np.array(i, np.int64), *carried), strict=True)
        going, *results = _run(loop.body, {**values, **dict(own)})
        carried, i = results[: len(carried)], i + 1
        stacks.append(results[len(carried) :])
    if not stacks and count > len(carried):
        raise _NotOnlyCallsError
    return [*carried, *(np.stack(rows) for rows in zip(*stacks, strict=True))]


def _value(atom: Any, values: dict[Any, Any]) -> Any:
    match atom:
        case TensorConst(value=value):
            return value
        case TensorVar():
            return values[atom]
    return None


def _call(call: Call, values: dict[Any, Any]) -> Results:
    op = get_op(call.op)
    attrs = Attrs(tuple((name, _literal(value)) for name, value in op.attrs(call.attrs).items()))
    with np.errstate(all="ignore"):
        return op.run_reference([_value(arg, values) for arg in call.args], attrs)


def _has_dims(value: Any) -> bool:
    """Whether an attribute is in sizes that an operator before it finds."""
    if isinstance(value, tuple):
        return any(map(_has_dims, value))
    return isinstance(value, Expr) and any(isinstance(node, Var) for node in walk(value))


def _literal(value: AttrValue) -> AttrValue:
    if isinstance(value, tuple):
        return tuple(map(_literal, value))
    return int(evaluate(value, {})) if isinstance(value, Expr) else value


def run_reference(arrays: Sequence[np.ndarray | None], attrs: Attrs) -> tuple[np.ndarray, ...]:
    """Run the node in `attrs["model"]` on the arrays, in the order of the model's inputs. InputError for an index or position that is out
    of range, UnsupportedError when it fails otherwise."""
    evaluator = _evaluator(base64.b64decode(str(attrs["model"])))
    inputs = _given(evaluator.proto_.graph.input, arrays)
    try:
        results = evaluator.run(None, inputs)
    except TcError:
        raise
    except IndexError as error:
        given = ", ".join(f"{name} is {_in_words(value)}" for name, value in inputs.items())
        raise InputError(f"a position or index is out of range: {given} ({error})", code="TC2004") from error
    except Exception as error:  # whatever ONNX's Python, or numpy below it, raises for these inputs
        shapes = ", ".join(f"{name} {np.shape(array)}" for name, array in inputs.items())
        raise UnsupportedError(
            f"ONNX's reference implementation fails on {shapes}: {type(error).__name__}: {error}",
            code="TC1020",
        ) from error
    packed = attrs.get("packed", ())
    assert isinstance(packed, tuple)
    outputs = zip(evaluator.proto_.graph.output, results, strict=True)
    return tuple(array for info, result in outputs for array in _tensors(info, result, info.name in packed))


def _in_words(value: Any) -> str:
    """A value in errors: numbers as they are, of what is large the shape."""
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    array = np.asarray(value)
    return str(array.tolist()) if array.size == 1 and array.dtype.kind in "iu" else f"of shape {list(array.shape)}"


def _given(infos: Sequence[Any], arrays: Sequence[np.ndarray | None]) -> dict[str, Any]:
    """The inputs of the reference, of the tensors that they lie in."""
    inputs, rest = {}, iter(arrays)
    for info in infos:
        kind, code = kind_of(info.type)
        dtype = dtype_name(code, info.name)
        if kind != "tensor":
            inputs[info.name] = unpack_value([next(rest) for _ in PACKED_NAMES], kind, dtype, _strings(dtype))  # type: ignore[misc]
        else:
            array = next(rest)
            inputs[info.name] = array if dtype != STRING or array is None else current_strings().array(array)
    return inputs


def _tensors(info: Any, result: Any, is_packed: bool) -> Sequence[np.ndarray]:
    """The tensors that a result of the reference lies in."""
    kind, code = kind_of(info.type)
    dtype = dtype_name(code, info.name)
    if is_packed:
        return pack_value(result, kind, dtype, _strings(dtype), f"the output {info.name!r}")
    if dtype == STRING:
        return [current_strings().numbers(np.asarray(result), f"the output {info.name!r}")]
    return [np.ascontiguousarray(result, dtype_of(code, info.name).numpy).reshape(np.shape(result))]


def _strings(dtype: str) -> StringTable | None:
    return current_strings() if dtype == STRING else None


register_python_function(REFERENCE_FUNCTION, run_reference)
