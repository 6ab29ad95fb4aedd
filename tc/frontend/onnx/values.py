"""What the names of a model stand for while it is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from tc.frontend.onnx.size_elements import Elements, array_of_elements, elements_of_array, is_constant, make_elements
from tc.ir.dtype import DType, i64
from tc.ir.expr import Expr
from tc.ir.graph import Atom, TensorConst
from tc.ir.types import TensorType, tensor_type


@dataclass(frozen=True, eq=False)
class ModelValue:
    """A tensor: an atom of the graph, or known elements that become an atom when somebody needs the data."""

    type: TensorType
    atom: Atom | None = None
    elements: Elements | None = None

    @property
    def shape(self) -> tuple[Expr, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def dtype(self) -> DType:
        return self.type.dtype


@dataclass(frozen=True, eq=False)
class StringsValue:
    """A tensor of strings, as i64 numbers in the table of the call (`signature.StringTable`): the same where the strings are."""

    numbers: ModelValue


@dataclass(frozen=True, eq=False)
class MapsValue:
    """A sequence of maps, one of each row of scores [rows, labels], from the labels to the numbers. Only an output can be one."""

    scores: ModelValue
    labels: tuple[int, ...] | tuple[str, ...]


@dataclass(frozen=True, eq=False)
class PackedValue:
    """What a sequence, an optional or a tensor of unknown rank is made from: three tensors (`signature`, "packed"); `type` is ONNX's."""

    type: Any
    tensors: tuple[ModelValue, ...]


@dataclass(frozen=True, eq=False)
class SequenceValue:
    """An ONNX sequence of known length; it exists at import only. `stack`: what has the items along its first axis, if something does."""

    items: tuple[ModelValue, ...]
    dtype: DType | None = None
    stack: ModelValue | None = None


@dataclass(frozen=True, eq=False)
class StoredSequence:
    """An ONNX sequence whose length data decide: the `elements` of its items, one after the other, and their `shapes` [length, rank].

    `dims` are those of every item, where they are known to be alike.
    """

    elements: ModelValue
    shapes: ModelValue
    dims: tuple[Expr, ...] | None = None

    @property
    def length(self) -> Expr:
        return self.shapes.shape[0]

    @property
    def rank(self) -> int:
        return int(self.shapes.shape[1])  # type: ignore[arg-type]  # of the items, which is known


@dataclass(frozen=True, eq=False)
class OptionalValue:
    """An ONNX optional: something or nothing, known at import."""

    content: ModelValue | StringsValue | SequenceValue | StoredSequence | None


@dataclass(frozen=True, eq=False)
class DeferredValue:
    """What only ONNX's reference can hold: a sequence whose length data decide, a tensor of a rank that nobody can say.

    `nodes` make it, as `name`, from `tensors`; they run together with the nodes that use it. `reason` says why, of which node. An input
    of that kind has no nodes, and is among the `tensors` itself.
    """

    nodes: tuple[Any, ...]
    name: str
    tensors: Mapping[str, Source]
    reason: str
    place: str
    label: str


@dataclass(frozen=True, eq=False)
class UnknownValue:
    """The result of a node that was refused; only met while a model is inspected."""


Source = Union[ModelValue, StringsValue, PackedValue]
"""What the program has as tensors."""

AnyValue = Union[ModelValue, StringsValue, SequenceValue, StoredSequence, OptionalValue, DeferredValue, MapsValue, UnknownValue]


def constant_value(array: np.ndarray, name: str = "") -> ModelValue:
    """A constant tensor. The array's memory is shared."""
    const = TensorConst(array, name)
    is_shape_like = array.size <= 64 and array.dtype.kind in "iub"
    return ModelValue(const.type, const, elements_of_array(array) if is_shape_like else None)


def elements_value(elements: Elements, dtype: DType) -> ModelValue:
    """A tensor of known elements; a constant if they are."""
    type_ = tensor_type(elements.shape, dtype)
    if is_constant(elements):
        return ModelValue(type_, TensorConst(array_of_elements(elements, dtype)), elements)
    return ModelValue(type_, None, elements)


def size_value(size: Expr) -> ModelValue:
    """A size, or another number of elements, as an i64 scalar."""
    return elements_value(make_elements([size], ()), i64)
