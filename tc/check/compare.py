"""Compare compiled kernels, one by one, with the reference interpreter.

The graph interpreter runs the whole model on one small random input; whenever it has computed a primitive function, the kernel that
was compiled from that function gets the same operands, and its results are compared. An error thus names the kernel, and
no kernel's error hides behind another's. Kernels that this input does not reach are not compared: the branch not taken, or what comes
after a node to which random numbers mean nothing.

How close a kernel must come is a matter of what it computes: where the reference itself moves by more than the usual tolerance when all
operands and values in between are rounded a little less well, so may the kernel.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tc.codegen.device import Device
from tc.errors import InputError, UnsupportedError, VerifyError
from tc.frontend.signature import require_numbers
from tc.interp.graph import Observation, Value, run_function
from tc.ir.arith import evaluate
from tc.ir.dtype import FLOAT8, DType, from_numpy, pack, tensor_memory, unpack
from tc.ir.expr import Var
from tc.ir.graph import CallFunction, CallTir, Function, GlobalRef, TensorConst, TensorVar, tir_calls
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.node import walk
from tc.ir.types import TensorType
from tc.ir.verify import verify as verify_ir
from tc.ops.registry import Requirement
from tc.runtime.builder import Stages

SIZES = (2, 3, 5, 8, 16, 32, 48, 64, 96, 128, 160, 224, 320, 512, 640)
"""What every symbolic dim is tried with, moved into its range, until the model's conditions hold."""

_MAX_INPUT_BYTES = 1 << 26
"""Sizes that make larger inputs are not tried: the interpreter keeps several arrays like them, in double precision."""

TOLERANCES = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2} | {
    dtype.name: 0.25 if "e5" in dtype.name else 0.125 for dtype in FLOAT8
} | {"f8e8m0": 0.5, "f4e2m1": 0.25}
"""Largest error over largest reference value: kernels add in another order than numpy, thousands of terms at most."""

_ROUNDING = 2.0**-20
"""Of f32: eight roundings of the last bit, or a function good to a few units in it."""
_TRIES = 4


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code of a PrimFunc: its finished loops (parameters and workspaces included), where it starts, and where its buffers must
    be (None: in the memory of the process)."""

    name: str
    func: PrimFunc
    address: int
    device: Device | None = None


def verify_kernels(
    graph: IRModule,
    lowered: IRModule,
    kernels: Mapping[str, CompiledKernel],
    requirements: Sequence[Requirement] = (),
    *,
    threads: int = 1,
    seed: int = 0,
) -> int:
    """Compare every kernel that a small random input reaches; returns how many were compared.

    `graph` holds primitive functions, `lowered` calls of PrimFuncs in their place, with the same targets. VerifyError naming the
    model's node and the kernel when a result differs. A model that takes no input of the sizes tried is as right as before.
    """
    calls = dict(tir_calls(lowered.main))
    compared: set[str] = set()

    def observe(seen: Observation) -> None:
        call = calls.get(seen.binding.targets[0]) if seen.binding.targets else None
        if call is None or call.callee in compared:
            return
        compared.add(call.callee)
        kernel = kernels[call.callee]
        dims = [int(evaluate(dim, seen.dims)) for dim in call.dims]
        operands = [np.asarray(value) for value in _given(seen, call)]
        made = run_kernel(kernel, operands, dims, threads)  # with workspaces, the last; schedules may merge dims
        found = [array.reshape(np.shape(expected)) for expected, array in zip(seen.results, made, strict=False)]
        problems = [_problem(kernel, k, np.asarray(expected), found[k]) for k, expected in enumerate(seen.results)]
        if any(problems):
            slack = _uncertainty(graph, seen)
            problems = [_problem(kernel, k, np.asarray(e), found[k], slack[k]) for k, e in enumerate(seen.results)]
        for target, problem in zip(seen.binding.targets, problems, strict=True):
            if problem is not None:
                raise VerifyError(
                    f"kernel {kernel.name}: {target.name} differs from the reference interpreter: {problem}", seen.binding.span
                )

    func = graph.main
    for size in SIZES:
        dims = _dims_near(func, size)
        if size > SIZES[0] and _input_bytes(func, dims) > _MAX_INPUT_BYTES:
            break
        inputs = sized_inputs(func, dims, np.random.default_rng(seed))
        try:
            run_function(graph, func.name, inputs, observe, requirements)
        except (InputError, UnsupportedError, ArithmeticError, LookupError, ValueError):
            continue  # a condition of the model, or operands that a reference cannot take; another size may do better
        break
    return len(compared)


def _given(seen: Observation, call: CallTir) -> list[Value]:
    """What the kernel of a primitive function is given: what this is given, and literals, which are other ones (`share_kernels`)."""
    assert isinstance(seen.binding.value, CallFunction)
    known = dict(zip(seen.binding.value.args, seen.operands[1:], strict=True))
    return [arg.value if isinstance(arg, TensorConst) else known[arg] for arg in call.args]


def _uncertainty(graph: IRModule, seen: Observation) -> list[float]:
    """How far each result of a primitive function moves when operands and values in between are off by `_ROUNDING` of their size.

    Values in between of narrower floats are off by half of their last bit: kernels keep what they made in f32 where it is used at once.
    0 for a result of integers or bools, and where nothing finite is left.
    """
    call = seen.binding.value
    assert isinstance(call, CallFunction) and isinstance(call.callee, GlobalRef)
    rng = np.random.default_rng(0)

    def off_by(part: float, array: np.ndarray) -> np.ndarray:
        return (array * (1 + part * rng.uniform(-1, 1, array.shape))).astype(array.dtype)

    def rounded(array: np.ndarray) -> np.ndarray:
        array = np.asarray(array)
        return off_by(_ROUNDING, array) if from_numpy(array.dtype).is_float else array

    def kept(array: np.ndarray) -> np.ndarray:
        array = np.asarray(array)
        return off_by(max(_ROUNDING, float(ml_dtypes.finfo(array.dtype).eps) / 2), array) if from_numpy(array.dtype).is_float else array

    moved = [0.0] * len(seen.results)
    for _ in range(_TRIES):
        operands = [rounded(value) for value in seen.operands[1:]]
        others = run_function(graph, call.callee.name, operands, dims=seen.dims, change=kept)
        for k, (one, other) in enumerate(zip(seen.results, others, strict=True)):
            if from_numpy(np.asarray(one).dtype).is_float:
                apart = np.abs(np.asarray(one).astype(np.float64) - other.astype(np.float64))
                moved[k] = max(moved[k], float(apart[np.isfinite(apart)].max(initial=0.0)))
    return moved


def random_inputs(func: Function, size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Arrays for the parameters, every symbolic dim being `size` moved into its range: normal floats, integers 0 and 1."""
    return sized_inputs(func, _dims_near(func, size), rng)


def _input_bytes(func: Function, dims: Mapping[Var, int]) -> int:
    types = [param.type for param in func.params if isinstance(param.type, TensorType)]
    return sum(math.prod(int(evaluate(dim, dims)) for dim in type_.shape) * type_.dtype.numpy.itemsize for type_ in types)


def _dims_near(func: Function, size: int) -> dict[Var, int]:
    facts = {fact.var: fact for fact in func.facts}
    dims: dict[Var, int] = {}
    for param in func.params:
        for var in (node for node in walk(param.type) if isinstance(node, Var)):
            fact = facts.get(var)
            step = fact.multiple_of if fact else 1
            wanted = max(size, fact.lo if fact else 0)
            wanted = -(-wanted // step) * step
            dims[var] = wanted if fact is None or fact.hi is None else min(wanted, fact.hi // step * step)
    return dims


def sized_inputs(func: Function, dims: Mapping[Var, int], rng: np.random.Generator) -> list[np.ndarray]:
    """Arrays for the parameters: normal floats, integers 0 and 1. `dims`: the sizes of all symbolic dims."""
    return [_random_array(param, dims, rng) for param in func.params]


def _random_array(param: TensorVar, dims: Mapping[Var, int], rng: np.random.Generator) -> np.ndarray:
    type_ = param.type
    assert isinstance(type_, TensorType)
    shape = tuple(int(evaluate(dim, dims)) for dim in type_.shape)
    if type_.dtype.is_float:
        return np.asarray(rng.standard_normal(shape)).astype(type_.dtype.numpy)
    return np.asarray(rng.integers(0, 2, shape)).astype(type_.dtype.numpy)


def run_kernel(kernel: CompiledKernel, inputs: Sequence[np.ndarray], dims: Sequence[int], threads: int) -> list[np.ndarray]:
    """The results (and workspaces) of machine code on arrays of the right types."""
    func = kernel.func
    env = dict(zip(func.dims, dims, strict=True))
    shapes = [tuple(int(evaluate(dim, env)) for dim in buffer.shape) for buffer in func.outputs]
    outputs = [tensor_memory(buffer.dtype, shape) for buffer, shape in zip(func.outputs, shapes, strict=True)]
    arrays = [*(pack(np.ascontiguousarray(x).reshape(x.shape)) for x in inputs), *outputs]
    pointers = [ctypes.c_void_p] * len(arrays)
    call = ctypes.CFUNCTYPE(None, *pointers, *[ctypes.c_int64] * len(dims), ctypes.c_int64)(kernel.address)
    if kernel.device is None:
        call(*(array.ctypes.data for array in arrays), *dims, threads)
    else:
        _call_on_device(kernel.device, call, arrays, len(outputs), dims)
    return [unpack(memory, buffer.dtype, shape) for memory, buffer, shape in zip(outputs, func.outputs, shapes, strict=True)]


def _call_on_device(
    device: Device, call: Callable[..., None], arrays: Sequence[np.ndarray], num_outputs: int, dims: Sequence[int]
) -> None:
    """Call with copies of the arrays on the device, and copy the last ones back."""
    queue = device.new_queue()
    blocks = [device.allocate(array.nbytes) for array in arrays]
    for block, array in zip(blocks, arrays, strict=True):
        queue.upload(block.address, array)
    call(*(block.address for block in blocks), *dims, queue.address)
    first = len(arrays) - num_outputs
    for block, array in zip(blocks[first:], arrays[first:], strict=True):
        queue.download(array, block.address)
    queue.finish()


def _problem(kernel: CompiledKernel, index: int, expected: np.ndarray, actual: np.ndarray, slack: float = 0.0) -> str | None:
    dtype = kernel.func.outputs[index].dtype
    reads_floats = any(buffer.dtype.is_float for buffer in kernel.func.inputs)
    return difference(expected, actual, dtype, reads_floats, slack)


def differing_result(expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> str | None:
    """What is wrong with the results of a model, by name, computed in another way; None when nothing is."""
    for name, value in expected.items():
        problem = difference(value, found[name], from_numpy(value.dtype), reads_floats=True)
        if problem is not None:
            return f"{name}: {problem}"
    return None


def difference(expected: np.ndarray, actual: np.ndarray, dtype: DType, reads_floats: bool, slack: float = 0.0) -> str | None:
    """What is wrong with `actual`; None when nothing is. `slack`: so much more a float may be off.

    Integers and bools must be equal, except that where they come from floats one in a thousand may be off by one: a comparison or
    a rounding that was a tie. Of large integers it may be more: floats near n, off by `_ROUNDING` of it, are rounded otherwise in
    one case of 1 / (n * _ROUNDING).
    """
    if dtype.is_float:
        want, got = expected.astype(np.float64), actual.astype(np.float64)
        finite = np.isfinite(want)
        same = np.array_equal(want[~finite], got[~finite], equal_nan=True) and bool(np.isfinite(got[finite]).all())
        if not same:
            return "NaN or infinity in other places"
        scale = float(np.abs(want[finite]).max(initial=0.0))
        error = float(np.abs(want[finite] - got[finite]).max(initial=0.0))
        allowed = TOLERANCES[dtype.name] * scale + slack
        return None if error <= allowed else f"the largest error is {error:.3g}, allowed is {allowed:.3g}"
    wrong = expected != actual
    count = int(np.count_nonzero(wrong))
    if count == 0:
        return None
    distance = np.abs(expected[wrong].astype(np.float64) - actual[wrong].astype(np.float64))
    ties = max(1e-3, _ROUNDING * float(np.abs(expected.astype(np.float64)).mean()))
    if reads_floats and distance.max() <= 1 and count <= max(1, int(expected.size * ties)):
        return None
    return f"{count} of {expected.size} elements are not equal"


def verify_stages(stages: Stages, always: bool, is_given: bool) -> None:
    """Check that the IR is well formed: that of every stage (`always`), or what a user wrote by hand (`is_given`)."""
    if always:
        require_numbers(stages.imported.signature, 'verify="always"')
    if always or is_given:
        verify_ir(stages.imported.module)
    for module in (stages.graph, stages.lowered, stages.module) if always else ():
        verify_ir(module)
