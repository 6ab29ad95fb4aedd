"""Indices that come from data: out of range, they are an error that names them, and nothing outside a tensor is touched.

None was checked once: an index one past the end read or wrote foreign memory, a large one ended the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import tc
from tc.errors import InputError, ModelError, TcError
from tests.runtime.guarded import guarded_copy

RNG = np.random.default_rng(7)
SIZE = 6
OUT_OF_RANGE = [SIZE, SIZE + 1, -SIZE - 1, 10**5, 10**11, -(10**11), 2**62, -(2**63), 2**63 - 1]


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class LookUp:
    """An operator that indexes an axis of SIZE. `place(i)`: its inputs, with `i` among the indices; input `operand` holds them."""

    place: Callable[[int], list[np.ndarray | None]]
    operand: int = 1
    attrs: tuple[tuple[str, Any], ...] = ()
    opset: int = 18
    outputs: int = 1
    op: str = ""


def _indices(shape: tuple[int, ...], index: int) -> np.ndarray:
    found = RNG.integers(-SIZE, SIZE, shape)
    found.reshape(-1)[found.size // 2] = index
    return found


LOOK_UPS: dict[str, LookUp] = {
    "Gather": LookUp(lambda i: [floats(SIZE, 19), _indices((5,), i)]),
    "Gather columns": LookUp(lambda i: [floats(9, SIZE), _indices((40,), i)], attrs=(("axis", 1),)),
    "Gather numbers": LookUp(lambda i: [floats(SIZE), _indices((37,), i)]),
    "Gather many rows": LookUp(lambda i: [floats(SIZE, 600), _indices((700,), i)]),
    "GatherElements": LookUp(lambda i: [floats(SIZE, 35), _indices((4, 33), i)]),
    "GatherElements rows": LookUp(lambda i: [floats(4, SIZE), _indices((4, 33), i)], attrs=(("axis", 1),)),
    "GatherND": LookUp(lambda i: [floats(SIZE, SIZE), _indices((50, 2), i)]),
    "GatherND rows": LookUp(lambda i: [floats(SIZE, SIZE, 21), _indices((50, 2), i)]),
    "GatherND batch": LookUp(lambda i: [floats(3, SIZE, 5), _indices((3, 4, 1), i)], attrs=(("batch_dims", 1),)),
    "ScatterElements": LookUp(lambda i: [floats(SIZE, 35), _indices((4, 33), i), floats(4, 33)]),
    "ScatterElements add": LookUp(
        lambda i: [floats(9, SIZE), _indices((9, 3), i), floats(9, 3)], attrs=(("axis", 1), ("reduction", "add"))
    ),
    "ScatterND": LookUp(lambda i: [floats(SIZE, 40), _indices((3, 1), i), floats(3, 40)]),
    "ScatterND numbers": LookUp(lambda i: [floats(SIZE, SIZE), _indices((20, 2), i), floats(20)], attrs=(("reduction", "mul"),)),
    "Scatter": LookUp(lambda i: [floats(SIZE, 5), _indices((2, 5), i), floats(2, 5)], opset=10),
    "MaxUnpool": LookUp(
        lambda i: [floats(1, 1, 1, 3), np.array([[[[0, i, 3]]]])],
        attrs=(("kernel_shape", [1, 2]), ("strides", [1, 2])),
    ),
}
LENGTHS: dict[str, LookUp] = {
    "RotaryEmbedding": LookUp(
        lambda i: [floats(1, 2, 3, 8), floats(SIZE, 4), floats(SIZE, 4), np.array([[i, 0, 2]])], operand=3, opset=23
    ),
    "ReverseSequence": LookUp(lambda i: [floats(SIZE - 1, 3, 7), np.array([2, i, 1])]),
    "LSTM": LookUp(
        lambda i: [floats(SIZE - 1, 2, 3), floats(1, 8, 3), floats(1, 8, 2), None, np.array([1, i]).astype(np.int32)],
        operand=4,
        attrs=(("hidden_size", 2),),
        outputs=3,
    ),
    "GRU backward": LookUp(
        lambda i: [floats(SIZE - 1, 2, 3), floats(1, 6, 3), floats(1, 6, 2), None, np.array([i, 1]).astype(np.int32)],
        operand=4,
        attrs=(("hidden_size", 2), ("direction", "reverse")),
        outputs=2,
        op="GRU",
    ),
    "Attention": LookUp(
        lambda i: [floats(2, 2, 3, 8), floats(2, 2, SIZE - 1, 8), floats(2, 2, SIZE - 1, 8), None, None, None, np.array([1, i])],
        operand=6,
        opset=24,
    ),
    "RoiAlign": LookUp(lambda i: [floats(SIZE, 1, 8, 8), np.array([[0, 0, 4, 4]], np.float32), np.array([i])], operand=2),
    "TensorScatter": LookUp(
        lambda i: [floats(1, SIZE + 1, 3), floats(1, 2, 3), np.array([i])], operand=2, opset=24, attrs=(("axis", 1),)
    ),
}


def model_of(row: LookUp, name: str, arrays: list[np.ndarray | None], literal: bool) -> onnx.ModelProto:
    """The operator alone; its indices are a literal, or an input like all others, of symbolic size where they may be."""
    names = [f"x{k}" if array is not None else "" for k, array in enumerate(arrays)]
    node = helper.make_node(row.op or name.split()[0], names, [f"y{k}" for k in range(row.outputs)], **dict(row.attrs))
    inputs, literals = [], []
    for k, (label, array) in enumerate(zip(names, arrays, strict=True)):
        if array is None:
            continue
        if literal and k == row.operand:
            literals.append(onnx.numpy_helper.from_array(array, label))
            continue
        inputs.append(helper.make_tensor_value_info(label, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape))
    outputs = [helper.make_empty_tensor_value_info(f"y{k}") for k in range(row.outputs)]
    graph = helper.make_graph([node], name.replace(" ", "_"), inputs, outputs, literals)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", row.opset)], ir_version=10)


ALL = [(name, row) for table in (LOOK_UPS, LENGTHS) for name, row in table.items()]


def _fits(index: int, array: np.ndarray) -> bool:
    return np.iinfo(array.dtype).min <= index <= np.iinfo(array.dtype).max


@pytest.mark.covering
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("name", "row"), ALL, ids=[name for name, _ in ALL])
def test_an_index_out_of_range_is_an_error_that_says_which(name: str, row: LookUp, threads: int) -> None:
    good = row.place(1)
    module = tc.compile(model_of(row, name, good, literal=False), threads=threads)
    expected = module(*[a for a in good if a is not None])
    kept = [array for array in good if array is not None]

    for index in OUT_OF_RANGE:
        if not _fits(index, np.asarray(good[row.operand])):
            continue
        bad = np.array(good[row.operand])
        bad.reshape(-1)[bad.size // 2] = index
        arrays = [bad if k == row.operand else array for k, array in enumerate(good)]
        for at_end in (True, False):
            guarded = [guarded_copy(array, at_end) for array in arrays if array is not None]
            with pytest.raises(InputError, match=rf"{row.op or name.split()[0]}_0: .*{index} is out of range.*{SIZE}"):
                module(*guarded)

    again = module(*kept)
    pairs = zip(again, expected, strict=True) if row.outputs > 1 else [(again, expected)]
    for found, first in pairs:
        np.testing.assert_array_equal(found, first)


@pytest.mark.parametrize(("name", "row"), ALL, ids=[name for name, _ in ALL])
def test_a_literal_index_out_of_range_is_an_error_too(name: str, row: LookUp) -> None:
    for index in (SIZE, 10**11):
        arrays = row.place(1)
        bad = np.array(arrays[row.operand])
        if not _fits(index, bad):
            continue
        bad.reshape(-1)[bad.size // 2] = index
        arrays[row.operand] = bad

        with pytest.raises((ModelError, InputError), match=rf"{index} is out of range.*{SIZE}"):
            module = tc.compile(model_of(row, name, arrays, literal=True))
            module(*[array for k, array in enumerate(arrays) if array is not None and k != row.operand])


@pytest.mark.covering
@pytest.mark.parametrize("name", LOOK_UPS)
@pytest.mark.parametrize("threads", [1, 2])
def test_valid_indices_give_what_onnx_says_within_guarded_memory(name: str, threads: int) -> None:
    row = LOOK_UPS[name]
    for index in (0, SIZE - 1, -1, -SIZE) if name != "MaxUnpool" else (0, SIZE - 1):
        arrays = [array for array in row.place(index) if array is not None]
        model = model_of(row, name, arrays, literal=False)
        if name == "MaxUnpool":  # no index twice: which of equal ones wins is not said
            arrays[1] = np.array([[[[0, 3, SIZE - 1]]]])
        expected = onnxruntime_result(model, arrays)
        out = guarded_copy(np.zeros(expected.shape, expected.dtype))

        result = tc.compile(model, threads=threads)(*[guarded_copy(array) for array in arrays], out=out)

        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def onnxruntime_result(model: onnx.ModelProto, arrays: list[np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {f"x{k}": array for k, array in enumerate(arrays)})
    return result


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')


@pytest.mark.parametrize(
    "text",
    [
        # a reshaped source: the wrong row of it would lie inside the memory
        "g (float[24] x, int64[n] i) => (float[a,b] y) <int64[2] s = {4, 6}> { w = Reshape(x, s) y = Gather<axis=1>(w, i) }",
        # a source that repeats one row: the index falls out of the expression
        "g (float[1,24] x, int64[n] i) => (float[a,b] y) <int64[2] s = {4, 24}> { w = Expand(x, s) y = Gather<axis=0>(w, i) }",
        # an axis of one element
        "g (float[1,24] x, int64[n] i) => (float[a,b] y) { y = Gather<axis=0>(x, i) }",
        # one branch of a choice
        "g (float[4,6] x, int64[n] i) => (float[a,b] y) <int64[1] o = {0}, int64[1] s = {1}, float[1] z = {1}> "
        "{ w = Gather<axis=0>(x, i) l = Less(i, o) k = Unsqueeze(l, s) y = Where(k, w, z) }",
        # beside another tensor
        "g (float[4,6] x, int64[n] i) => (float[a,b] y) { w = Gather<axis=0>(x, i) y = Concat<axis=0>(x, w) }",
        # computed indices
        "g (float[4,6] x, int64[n] i) => (float[a,b] y) <int64[1] z = {0}> { j = Add(i, z) y = Gather<axis=0>(x, j) }",
        # looked up in what was looked up
        "g (float[4,6] x, int64[n] i) => (float[a,b] y) { w = Gather<axis=0>(x, i) v = Relu(w) y = Gather<axis=1>(v, i) }",
        # added up
        "g (float[4,6] x, int64[n] i) => (float[a] y) <int64[1] s = {0}> { w = Gather<axis=0>(x, i) y = ReduceSum<keepdims=0>(w, s) }",
        # multiplied
        "g (float[4,6] x, int64[n] i) => (float[a,b] y) { w = Gather<axis=0>(x, i) t = Transpose<perm=[1,0]>(x) y = MatMul(w, t) }",
    ],
)
def test_fusion_forgets_no_check(text: str) -> None:
    model = parse(text)
    module = tc.compile(model)
    inputs = [floats(*[d.dim_value for d in i.type.tensor_type.shape.dim]) for i in model.graph.input[:1]]

    for bad in ([0, 99], [-99], [0] * 40 + [10**11]):
        with pytest.raises(InputError, match=rf"Gather_\d: index {bad[-1]} is out of range for axis \d of size \d"):
            module(*inputs, np.array(bad))
    assert np.isfinite(module(*inputs, np.zeros(2, np.int64))).all()


def test_an_empty_axis_has_no_valid_index() -> None:
    module = tc.compile(parse("g (float[n,5] x, int64[m] i) => (float[m,5] y) { y = Gather<axis=0>(x, i) }"))
    empty = guarded_copy(np.zeros((0, 5), np.float32))

    assert module(empty, np.zeros(0, np.int64)).shape == (0, 5)
    for index in (0, -1):
        with pytest.raises(InputError, match=f"index {index} is out of range for axis 0 of size 0"):
            module(empty, np.array([index]))


_EXPANDED = "int64[1] i, int64[1] s) => (float[m{rest}] y) {{ k = Expand(i, s) "
NOTHING = {
    name: f"g (float[n{rest}] x, {_EXPANDED.format(rest=rest)}{nodes} }}"
    for name, rest, nodes in (
        ("an index for no rows", "", "y = Gather(x, k)"),
        ("a computed one", "", "l = Add(k, k) h = Sub(l, k) y = Gather(x, h)"),
        ("elements", "", "y = GatherElements(x, k)"),
        ("in two loops", ",5", "y = Gather(x, k)"),
        ("an index of an index", "", "c = Cast<to=7>(x) j = Gather(c, k) y = Gather(x, j)"),
    )
}


@pytest.mark.parametrize("text", NOTHING.values(), ids=NOTHING)
@pytest.mark.parametrize("threads", [1, 2])
def test_an_index_that_nothing_asks_for_is_not_looked_at(text: str, threads: int) -> None:
    """Its check had left the loop over what is gathered, which is of no iteration."""
    module = tc.compile(parse(text), threads=threads)
    shape = (2, 5) if "[n,5]" in text else (2,)
    full, empty = guarded_copy(np.ones(shape, np.float32)), guarded_copy(np.zeros((0, *shape[1:]), np.float32))
    for x, index in ((full, 7), (full, -(2**62)), (empty, 0)):
        assert module(x, np.array([index]), np.array([0])).size == 0
        with pytest.raises(InputError, match=f"index {index} is out of range for axis 0 of size {len(x)}"):
            module(x, np.array([index]), np.array([3]))
    assert (module(full, np.array([1]), np.array([3])) == 1).all()


def test_an_index_made_from_nan_is_checked_like_any_other() -> None:
    module = tc.compile(
        parse("g (float[4,5] x, float[n] f) => (float[n,5] y) { i = Cast<to=7>(f) y = Gather<axis=0>(x, i) }")
    )

    for value in (np.inf, -np.inf, 1e30, 4.0, -5.0):
        with pytest.raises(InputError, match="out of range for axis 0 of size 4"):
            module(floats(4, 5), np.array([0, value], np.float32))
    x = floats(4, 5)  # NaN becomes 0, as saturating casts have it
    np.testing.assert_array_equal(module(x, np.array([np.nan], np.float32)), x[:1])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.uint32, np.uint64])
def test_indices_of_every_dtype_are_checked(dtype: Any) -> None:
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    module = tc.compile(
        parse(f"g (float[4,5] x, int64[n] s) => (float[n,5] y) {{ i = Cast<to={code}>(s) k = Cast<to=7>(i) y = Gather<axis=0>(x, k) }}")
    )

    with pytest.raises(InputError, match="out of range"):
        module(floats(4, 5), np.array([0, 100]))


def test_what_onnx_gives_a_meaning_raises_nothing() -> None:
    hot = tc.compile(parse("g (int64[3] i) => (float[a,b] y) <int64 d = {4}, float[2] v = {0, 1}> { y = OneHot(i, d, v) }"))
    part = tc.compile(
        parse("g (float[5] x, int64[1] a, int64[1] b) => (float[n] y) <int64[1] k = {0}> { y = Slice(x, a, b, k) }")
    )

    np.testing.assert_array_equal(hot(np.array([1, 9, -99])), [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    x = floats(5)
    np.testing.assert_array_equal(part(x, np.array([-(10**12)]), np.array([10**12])), x)


def test_an_index_that_changes_during_the_call_is_used_as_it_was_checked() -> None:
    module = tc.compile(parse("g (float[4,64] x, int64[n] i) => (float[n,64] y) { y = Gather<axis=0>(x, i) }"), threads=2)
    x = guarded_copy(np.repeat(np.arange(4, dtype=np.float32)[:, None], 64, 1))
    indices = np.ones(3000, np.int64)
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            indices[::7] = 10**11
            indices[::7] = 1

    thread = threading.Thread(target=disturb)
    thread.start()
    outcomes = set()
    try:
        for _ in range(300):
            try:
                outcomes.add(bool((module(x, indices) == 1).all()))
            except InputError as error:
                assert "index 100000000000 is out of range for axis 0 of size 4" in str(error)
    finally:
        stop.set()
        thread.join()

    assert outcomes <= {True}


def test_an_out_of_range_index_in_a_branch_that_is_not_taken_is_no_error() -> None:
    module = tc.compile(
        parse(
            "g (float[4] x, bool c) => (float[a] y) <int64[1] i = {9}> "
            "{ y = If(c) <then_branch = t () => (float[a] p) { p = Gather(x, i) }, else_branch = e () => (float[a] q) { q = Neg(x) }> }"
        )
    )
    x = floats(4)

    np.testing.assert_array_equal(module(x, np.array(False)), -x)
    with pytest.raises(InputError, match="index 9 is out of range for axis 0 of size 4"):
        module(x, np.array(True))


def test_a_reference_kernel_says_whose_value_does_not_fit() -> None:
    module = tc.compile(parse("g (float[4,3] x, int64[1] k) => (float[a,b] v, int64[a,b] i) { v, i = TopK(x, k) }"))

    with pytest.raises(TcError, match="TopK_0"):
        module(floats(4, 3), np.array([9]))
