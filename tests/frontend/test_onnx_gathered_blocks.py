"""GatherBlockQuantized along any axis, that of the blocks included: against its definition in numpy, and against onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.errors import TcError

LIMITS = {"i4": (-8, 8), "u4": (0, 16)}
KINDS = {"i4": np.dtype(ml_dtypes.int4), "u4": np.dtype(ml_dtypes.uint4), "f8": np.dtype(ml_dtypes.float8_e4m3fn)}


@dataclass
class Choice:
    """A GatherBlockQuantized of random numbers: i4, u4, f8, or `bits` of them packed in bytes (u8)."""

    kind: str
    shape: tuple[int, ...]
    gather: int
    along: int
    bits: int = 4
    block: int = 16
    has_zeros: bool = True
    scales: Any = np.float32
    shared: tuple[int, ...] = ()
    """Axes that one scale is for."""
    expected: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng, rank = np.random.default_rng(len(self.shape) + self.gather), len(self.shape)
        along = self.along % rank
        blocks = [-(-size // (self.block or size)) if d == along else size for d, size in enumerate(self.shape)]
        self.scale = rng.uniform(0.1, 1, [1 if d in self.shared else size for d, size in enumerate(blocks)]).astype(self.scales)
        low, high = LIMITS.get(self.kind, (0, 2**self.bits))
        self.zero = np.full(blocks, 2 ** (self.bits - 1) if self.kind == "u8" else 0)
        if self.kind == "f8":
            self.numbers = rng.standard_normal(self.shape).astype(KINDS["f8"])
        else:
            self.numbers = rng.integers(low, high, self.shape)
            self.zero = rng.integers(low, high, blocks) if self.has_zeros else self.zero
        places = np.arange(self.shape[along]) // (self.block or self.shape[along])
        each = self.numbers.astype(np.float32) - self.zero.take(places, along).astype(np.float32)
        self.expected = (each * np.broadcast_to(self.scale, blocks).take(places, along).astype(np.float32)).astype(self.scales)

    def _stored(self, name: str, numbers: np.ndarray) -> TensorProto:
        if self.kind in KINDS:
            return numpy_helper.from_array(numbers.astype(KINDS[self.kind]), name)
        each = 8 // self.bits
        padded = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, -numbers.shape[-1] % each)])
        parts = padded.reshape(*padded.shape[:-1], -1, each) << (self.bits * np.arange(each))
        return numpy_helper.from_array(parts.sum(-1).astype(np.uint8), name)

    def model(self, indices: tuple[Any, ...]) -> onnx.ModelProto:
        zeros = [self._stored("z", self.zero)] if self.has_zeros and self.kind != "f8" else []
        attrs: dict[str, Any] = {"bits": self.bits, "block_size": self.block, "gather_axis": self.gather, "quantize_axis": self.along}
        node = helper.make_node("GatherBlockQuantized", ["d", "i", "s", *(["z"] if zeros else [])], ["y"], domain="com.microsoft", **attrs)
        inputs = [helper.make_tensor_value_info("i", TensorProto.INT64, indices)]
        outputs = [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(self.scales)), None)]
        literals = [self._stored("d", self.numbers), numpy_helper.from_array(self.scale, "s"), *zeros]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(helper.make_graph([node], "g", inputs, outputs, literals), opset_imports=opsets, ir_version=10)


CHOICES = [
    Choice("i4", (5, 40), 1, 1), Choice("u4", (37,), 0, 0, has_zeros=False), Choice("u4", (40, 5), -2, 0, scales=np.float16),
    Choice("u8", (37,), 0, 0, bits=8), Choice("u8", (3, 33), 1, -1, bits=8, has_zeros=False), Choice("u8", (48,), 0, 0),
    Choice("u8", (3, 36), 1, 1, bits=2), Choice("u8", (40, 3), 0, 0, bits=8), Choice("i4", (2, 3, 4, 20), 3, 3, block=1),
    Choice("i4", (3, 20, 4), 0, 1), Choice("i4", (3, 20, 4), 2, 1, has_zeros=False), Choice("u8", (4, 3, 36), 0, 2),
    Choice("f8", (5, 40), 1, 1), Choice("f8", (5, 40), 0, 1, block=0, shared=(0,)), Choice("f8", (40, 5), 1, 0, shared=(1,)),
]  # fmt: skip


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: f"{c.kind}-{c.bits}-{c.shape}-{c.gather}-{c.along}")
def test_numbers_are_chosen_along_any_axis(choice: Choice) -> None:
    """Along the axis of the blocks, which was refused, each number has the scale and the zero point of its own block."""
    size, rng = choice.shape[choice.gather], np.random.default_rng(0)
    ends = np.array([[0, size - 1, -1], [-size, size // 2, -(size // 2) - 1]])
    drawn_for = {(2, "n"): [ends, rng.integers(-size, size, (2, 0))], (): [np.array(-size)], (1,): [np.array([size - 1])]}
    for shape, drawn in ((shape, each) for shape, several in drawn_for.items() for each in several):
        model = choice.model(shape)
        expected = choice.expected.take(drawn, choice.gather)

        found = tc.compile(model, threads=1)(drawn)

        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        if choice.kind in LIMITS and choice.block >= 16 and len(choice.shape) > 1:
            other = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"i": drawn})[0]
            np.testing.assert_array_equal(found, other)


def test_it_is_native() -> None:
    assert [node.status for node in tc.inspect(CHOICES[0].model((3,))).nodes] == ["native"]


@pytest.mark.parametrize("index", [20, -21, 31])
def test_indices_behind_the_end_are_refused(index: int) -> None:
    """31 would be in the last of the blocks."""
    module = tc.compile(Choice("i4", (3, 20), 1, 1).model((1,)), threads=1)

    with pytest.raises(TcError, match=f"index {index} is out of range for axis 1 of size 20"):
        module(np.array([index]))


def test_parameters_of_other_sizes_are_refused() -> None:
    choice = Choice("i4", (5, 40), 1, 1)
    choice.scale = choice.scale[:, :2]
    with pytest.raises(TcError, match=r"scales or zero points are f32\[5, 2\], but blocks of 16 along axis 1 of i4\[5, 40\]"):
        tc.compile(choice.model((3,)), threads=1)
    choice = Choice("u4", (5, 40), 0, 1)
    choice.zero = choice.zero[:1]
    with pytest.raises(TcError, match="scales or zero points are u4"):
        tc.compile(choice.model((3,)), threads=1)


@pytest.mark.parametrize(("attribute", "value"), [("gather", 2), ("along", -3), ("block", 0), ("block", -16)])
def test_attributes_that_mean_nothing_are_refused(attribute: str, value: int) -> None:
    choice = Choice("i4", (5, 40), 1, 1)
    setattr(choice, attribute, value)
    with pytest.raises(TcError, match="GatherBlockQuantized"):
        tc.compile(choice.model((3,)), threads=1)
