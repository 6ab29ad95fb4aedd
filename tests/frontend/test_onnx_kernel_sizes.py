"""Convolutions whose kernels, padding or results have sizes known at run time only, and what undoes a pooling."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

import tc
from tests.frontend.models import from_text, run_onnxruntime


def counted(*shape: int) -> np.ndarray:
    return (np.arange(np.prod(shape)) % 7 - 3).astype(np.float32).reshape(shape)


X, W = counted(2, 4, 5, 6), counted(4, 2, 3, 2)
ATTRS = [  # a symbolic kernel ran on a reference that knows no groups, and gets a stated shape wrong
    "",
    "kernel_shape=[3,2]",
    'auto_pad="SAME_UPPER"',
    'auto_pad="SAME_LOWER", kernel_shape=[3,2]',
    "strides=[2,1], dilations=[1,2], pads=[1,0,0,1]",
]


@pytest.mark.parametrize(
    "attrs", [*ATTRS, "output_shape=[11,7], strides=[2,1]", 'output_shape=[10,6], strides=[2,1], auto_pad="SAME_UPPER"']
)
def test_a_transposed_convolution_with_symbolic_sizes_and_groups_agrees_with_onnxruntime(attrs: str) -> None:
    model = from_text(
        "g (float[n,4,h,w] x, float[4,2,p,q] k, float[4] bias) => (float[a,b,c,d] y) "
        f"{{ y = ConvTranspose <group=2{', ' if attrs else ''}{attrs}> (x, k, bias) }}"
    )
    feeds = {"x": X, "k": W, "bias": counted(4)}

    module = tc.compile(model, threads=1, on_unsupported="error")

    np.testing.assert_array_equal(module.run(feeds)["y"], run_onnxruntime(model, feeds)[0])


@pytest.mark.parametrize("attrs", ATTRS)
def test_a_convolution_with_symbolic_sizes_and_groups_agrees_with_onnxruntime(attrs: str) -> None:
    model = from_text(
        "g (float[n,4,h,w] x, float[o,2,p,q] k) => (float[a,b,c,d] y) "
        f"{{ y = Conv <group=2{', ' if attrs else ''}{attrs}> (x, k) }}"
    )
    feeds = {"x": X, "k": W}

    module = tc.compile(model, threads=1, on_unsupported="error")

    np.testing.assert_array_equal(module.run(feeds)["y"], run_onnxruntime(model, feeds)[0])


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_weights_that_are_not_as_large_as_stated_are_refused_when_the_model_runs(op: str) -> None:
    model = from_text(
        f"g (float[n,2,h,w] x, float[2,2,p,q] k) => (float[a,b,c,d] y) {{ y = {op} <kernel_shape=[3,2]> (x, k) }}"
    )
    module = tc.compile(model, threads=1)

    with pytest.raises(tc.TcError, match=r"kernel_shape is \[3, 2\]"):
        module.run({"x": counted(1, 2, 5, 5), "k": counted(2, 2, 2, 3)})


UNPOOL = (
    "v, i = MaxPool <kernel_shape=[2,2], strides=[2,2]> (x) y = MaxUnpool <kernel_shape=[2,2], strides=[2,2]> (v, i"
)


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (1, 2, 1, 5), (1, 1, 1, 1)])
def test_a_pool_of_a_symbolic_image_is_undone(shape: tuple[int, ...]) -> None:
    """A pool with indices gave nothing where its window is longer than the image; onnxruntime gives one result."""
    model = from_text(f"g (float[n,c,h,w] x) => (float[a,b,c2,d] y) {{ {UNPOOL}) }}")

    found = tc.compile(model, threads=1).run({"x": counted(*shape)})["y"]

    np.testing.assert_array_equal(found, run_onnxruntime(model, {"x": counted(*shape)})[0])


def test_a_pool_is_undone_to_a_shape_that_is_an_input() -> None:
    """ "output_shape (input 2) must be constant"."""
    model = from_text(f"g (float[n,c,h,w] x, int64[4] s) => (float[a,b,c2,d] y) {{ {UNPOOL}, s) }}")
    feeds = {"x": counted(2, 1, 4, 4), "s": np.array([2, 1, 4, 5])}

    module = tc.compile(model, threads=1)

    np.testing.assert_array_equal(module.run(feeds)["y"], run_onnxruntime(model, feeds)[0])
    with pytest.raises(tc.TcError, match="index"):
        module.run({**feeds, "s": np.array([2, 1, 2, 4])})


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("sizes", [(4, 7), (2, 2), (9, 1), (3, 6), (0, 5)])
def test_an_image_of_symbolic_size_is_centered(sizes: tuple[int, int], dtype: str) -> None:
    """ONNX's definition in smaller operators has no meaning with sizes of 32 bits: "operands must have one dtype"."""
    model = from_text(f"g (float[h,n,w] x, {dtype}[2] s) => (float[a,n,c] y) {{ y = CenterCropPad <axes=[-1,0]> (x, s) }}", 18)
    feeds = {"x": counted(5, 2, 4), "s": np.array(sizes, dtype)}

    found = tc.compile(model, threads=1, on_unsupported="error").run(feeds)["y"]

    np.testing.assert_array_equal(found, ReferenceEvaluator(model).run(None, feeds)[0])


@pytest.mark.covering
@pytest.mark.parametrize(
    ("kernel", "strides", "side"), [((3, 2), (2, 1), "SAME_UPPER"), ((2, 5), (1, 3), "SAME_LOWER"), ((4, 2), (3, 2), "SAME_LOWER")]
)
@pytest.mark.parametrize(("op", "more"), [("AveragePool", ""), ("AveragePool", ", count_include_pad = 1"), ("LpPool", ""), ("MaxPool", "")])
def test_a_pool_of_a_symbolic_image_keeps_its_size_natively(
    op: str, more: str, kernel: tuple[int, int], strides: tuple[int, int], side: str
) -> None:
    # Means and norms ran on ONNX's reference, where the padding depends on the size of the image.
    model = parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, c, h, w] x) => (float[n, c, a, b] y) {{
            y = {op}<kernel_shape = {list(kernel)}, strides = {list(strides)}, auto_pad = "{side}"{more}>(x)
        }}"""
    )
    module, rng = tc.compile(model, on_unsupported="error"), np.random.default_rng(sum(kernel))

    for shape in ((1, 1, 9, 13), (2, 3, 5, 6), (1, 2, 16, 7)):
        x = rng.standard_normal(shape).astype(np.float32)
        (expected,) = run_onnxruntime(model, {"x": x})
        np.testing.assert_allclose(module(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.covering
@pytest.mark.parametrize("pads", [[1, 1], [4, 3], [2, 0, 0, 3], [-1, 2, 4, 0], [1, 2, 1, 1, 2, 1]])
@pytest.mark.parametrize("mode", ["reflect", "wrap", "edge"])
def test_pads_of_sizes_that_the_run_tells_may_be_larger_than_their_dims(mode: str, pads: list[int]) -> None:
    """Where they are smaller, nothing is divided: two ways through one kernel."""
    rank, rng = len(pads) // 2, np.random.default_rng(len(pads))
    dims = ",".join("abc"[:rank])
    text = f'<ir_version: 9, opset_import: ["": 19]> g (float[{dims}] x, int64[{2 * rank}] p) => (float[{dims.upper()}] y)'
    model = parse_model(text + f' {{ y = Pad<mode = "{mode}">(x, p) }}')
    model.graph.initializer.append(numpy_helper.from_array(np.array(pads), "p"))
    del model.graph.input[1]
    module = tc.compile(model, threads=2)

    for _ in range(12):
        x = rng.standard_normal(tuple(rng.choice([2, 3, 4, 5, 17, 40], rank))).astype(np.float32)
        cut = x[tuple(slice(max(-b, 0), dim - max(-e, 0)) for b, e, dim in zip(pads[:rank], pads[rank:], x.shape, strict=True))]
        widths = [(max(b, 0), max(e, 0)) for b, e in zip(pads[:rank], pads[rank:], strict=True)]
        np.testing.assert_array_equal(module(x), np.pad(cut, widths, mode=mode))  # type: ignore[call-overload]
