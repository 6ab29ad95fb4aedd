"""Inputs and outputs of a model that are more than tensors of numbers, and how they lie in such tensors.

    tensor    itself. One of strings: i64 numbers in a table of the call, in which the strings of the model come first and "" is 0
    list      a sequence of known length: its items
    nothing   an optional that is known to be empty: no tensor
    packed    what is of unknown length or rank: `elements` of all items one after the other, `ranks` i64[items], `dims` i64 of all items.
              `ranks` is [-1] for an optional without content
    maps      of an output: a tensor [rows, labels], a dict of each row
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tc.errors import InputError, UnsupportedError
from tc.ir.dtype import parse_dtype

STRING = "string"
TENSOR, LIST, NOTHING, PACKED, MAPS = "tensor", "list", "nothing", "packed", "maps"
PACKED_NAMES = ("elements", "ranks", "dims")
_NO_CONTENT = np.array([-1], np.int64)


class StringTable:
    """Strings by number, and numbers by string. `base`: a table whose numbers these continue, and which does not change meanwhile."""

    def __init__(self, texts: Iterable[str] = (), base: StringTable | None = None) -> None:
        self._base = base
        self._start = 0 if base is None else len(base)
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}
        for text in ("", *texts) if base is None else texts:
            self.number(text)

    def __len__(self) -> int:
        return self._start + len(self._texts)

    @property
    def texts(self) -> tuple[str, ...]:
        """The strings that this table adds."""
        return tuple(self._texts)

    def number(self, text: str) -> int:
        """The number of a string, a new one if it has none."""
        found = self._numbers.get(text) if self._base is None else self._base._numbers.get(text, self._numbers.get(text))
        if found is None:
            found = self._numbers[text] = len(self)
            self._texts.append(text)
        return found

    def text(self, number: int) -> str:
        """The string of a number."""
        if number < self._start and self._base is not None:
            return self._base.text(number)
        return self._texts[number - self._start]

    def numbers(self, array: Any, what: str) -> np.ndarray:
        """i64 numbers of an array of strings. InputError for elements that are none."""
        given = np.asarray(array, None if isinstance(array, np.ndarray) else object)
        if given.dtype.kind not in "OUST":
            raise InputError(f"{what}: dtype is {given.dtype}, but must be one of strings", code="TC2002")
        found = np.fromiter((self.number(_as_text(item, what)) for item in given.reshape(-1).tolist()), np.int64, given.size)
        return found.reshape(given.shape)

    def array(self, numbers: np.ndarray) -> np.ndarray:
        """The strings of i64 numbers, as an array of Python strings."""
        found = np.empty(numbers.size, object)
        found[:] = [self.text(int(number)) for number in numbers.reshape(-1)]
        return found.reshape(numbers.shape)


def _as_text(item: object, what: str) -> str:
    if isinstance(item, bytes):
        try:
            return item.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{what}: a string is not UTF-8: {error}", code="TC2008") from error
    if not isinstance(item, str):
        raise InputError(f"{what}: an element is a {type(item).__name__}, must be a string", code="TC2008")
    return item


_call = threading.local()


@contextlib.contextmanager
def strings_of_call(table: StringTable) -> Iterator[StringTable]:
    """Make `table` the one that functions of Python find while a module runs on this thread."""
    before = getattr(_call, "table", None)
    _call.table = table
    try:
        yield table
    finally:
        _call.table = before


def current_strings() -> StringTable:
    """The table of the call that runs on this thread."""
    table: StringTable | None = getattr(_call, "table", None)
    if table is None:
        raise UnsupportedError("strings are known only while a compiled module runs that takes or returns them", code="TC1017")
    return table


# -- one value


def pack_value(value: Any, kind: str, dtype: str, strings: StringTable | None, what: str) -> list[np.ndarray]:
    """`elements`, `ranks` and `dims` of a value of a kind: "tensor", "sequence", "optional" or "optional sequence".

    InputError for a value of another kind, or of other elements.
    """
    numbers = np.dtype(np.int64) if dtype == STRING else parse_dtype(dtype).numpy
    if value is None:
        if not kind.startswith("optional"):
            raise InputError(f"{what} is None, must be a {kind}", code="TC2008")
        return [np.empty(0, numbers), _NO_CONTENT, np.empty(0, np.int64)]
    if kind.endswith("sequence"):
        if not isinstance(value, (list, tuple)):
            raise InputError(f"{what} is a {type(value).__name__}, must be a list of arrays", code="TC2008")
        items = [item_array(item, dtype, strings, f"{what}[{k}]") for k, item in enumerate(value)]
    else:
        items = [item_array(value, dtype, strings, what)]
    elements = np.concatenate([np.empty(0, numbers), *(item.reshape(-1) for item in items)])
    ranks = np.array([item.ndim for item in items], np.int64)
    return [elements, ranks, np.array([size for item in items for size in item.shape], np.int64)]


def item_array(value: Any, dtype: str, strings: StringTable | None, what: str) -> np.ndarray:
    """A value as an array of the dtype, strings as their numbers. InputError when it is of another one."""
    if dtype == STRING:
        assert strings is not None
        return strings.numbers(value, what)
    array = np.asarray(value)
    if array.dtype != parse_dtype(dtype).numpy:
        raise InputError(f"{what}: dtype is {array.dtype}, but must be {dtype}", code="TC2002")
    return array


def unpack_value(arrays: Sequence[np.ndarray], kind: str, dtype: str, strings: StringTable | None) -> Any:
    """The value that `pack_value` packed; its arrays are views. InputError for tensors that are not packed so."""
    elements, ranks, dims = arrays
    if kind.startswith("optional") and ranks.tolist() == [-1]:
        return None
    if (ranks < 0).any() or (dims < 0).any() or ranks.sum() != dims.size or (not kind.endswith("sequence") and ranks.size != 1):
        raise InputError(f"ranks {ranks.tolist()} and dims {dims.tolist()} are not those of a {kind}", code="TC2008")
    items, place, start = [], 0, 0
    for rank in ranks.tolist():
        shape = tuple(dims[place : place + rank].tolist())
        count = prod(shape)
        if start + count > elements.size:
            raise InputError(f"dims {dims.tolist()} need more than {elements.size} elements", code="TC2008")
        item = elements[start : start + count].reshape(shape)
        items.append(strings.array(item) if dtype == STRING and strings is not None else item)
        place, start = place + rank, start + count
    return items if kind.endswith("sequence") else items[0]


# -- all of a model


@dataclass(frozen=True)
class ValueLayout:
    """An input or output: how it lies in `count` tensors. `kind` is what a packed one is; `dtype` that of elements, or "string";
    `labels` are the keys of maps, `sizes` those that the tensor in an optional must have, None for each that is open."""

    name: str
    form: str
    count: int
    dtype: str
    kind: str = TENSOR
    labels: tuple[int | str, ...] = ()
    sizes: tuple[int | None, ...] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is a tensor of numbers."""
        return self.form == TENSOR and self.dtype != STRING

    def __str__(self) -> str:
        return f"{self.name}: {self.described}"

    @property
    def described(self) -> str:
        """What it is, in words."""
        if self.form == LIST:
            return f"sequence of {self.count} x {self.dtype}"
        if self.form == MAPS:
            return f"sequence of maps of {len(self.labels)} x {self.dtype}"
        return "nothing" if self.form == NOTHING else f"{self.kind} of {self.dtype}"

    def flat_names(self) -> tuple[str, ...]:
        """What its tensors are called."""
        if self.form == TENSOR:
            return (self.name,)
        return tuple(f"{self.name}.{word}" for word in (PACKED_NAMES if self.form == PACKED else range(self.count)))

    def flatten(self, value: Any, strings: StringTable) -> Sequence[Any]:
        """The tensors of a value."""
        what = f'input "{self.name}"'
        if self.is_plain:
            return [value]
        if self.form == TENSOR:
            return [strings.numbers(value, what)]
        if self.form == PACKED:
            packed = pack_value(value, self.kind, self.dtype, strings, what)
            if value is not None and self.sizes is not None:
                _check_sizes(packed[2].tolist(), self.sizes, what)
            return packed
        if not isinstance(value, (list, tuple)) or len(value) != self.count:
            found = f"{len(value)} items" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"
            raise InputError(f"{what} is {found}, must be a list of {self.count} arrays", code="TC2008")
        return [item_array(item, self.dtype, strings, f"{what}[{k}]") for k, item in enumerate(value)]

    def restore(self, tensors: Sequence[np.ndarray], strings: StringTable) -> Any:
        """The value of its tensors."""
        if self.form == PACKED:
            return unpack_value(tensors, self.kind, self.dtype, strings)
        if self.form == MAPS:
            return [dict(zip(self.labels, row, strict=True)) for row in tensors[0].tolist()]
        items = [strings.array(item) for item in tensors] if self.dtype == STRING else list(tensors)
        if self.form == LIST:
            return items
        return items[0] if items else None


def _check_sizes(found: Sequence[int], wanted: Sequence[int | None], what: str) -> None:
    if len(found) != len(wanted):
        raise InputError(f"{what}: rank is {len(found)}, but must be {len(wanted)}", code="TC2003")
    for axis, (size, want) in enumerate(zip(found, wanted, strict=True)):
        if want is not None and size != want:
            raise InputError(f"{what}: dim {axis} is {size}, but must be {want}", code="TC2003")


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a model of which not all are tensors of numbers, and the strings that the model knows."""

    inputs: tuple[ValueLayout, ...]
    outputs: tuple[ValueLayout, ...]
    strings: StringTable

    def flatten(self, values: Mapping[str, Any], strings: StringTable) -> dict[str, Any]:
        """The tensors of inputs by name; names that are none of the inputs' stay."""
        parts = {part.name: part for part in self.inputs}
        flat: dict[str, Any] = {}
        for name, value in values.items():
            part = parts.get(name)
            flat.update({name: value} if part is None else zip(part.flat_names(), part.flatten(value, strings), strict=True))
        for part in self.inputs:
            if part.name not in values:
                raise InputError(f'input "{part.name}" is missing; the inputs are: {", ".join(str(p) for p in self.inputs)}', code="TC2001")
        return flat

    def by_position(self, values: Sequence[Any]) -> dict[str, Any]:
        """Inputs by name."""
        if len(values) != len(self.inputs):
            raise InputError(f"{len(values)} values given, but the model has {len(self.inputs)} inputs", code="TC2001")
        return {part.name: value for part, value in zip(self.inputs, values, strict=True)}

    def restore(self, tensors: Sequence[np.ndarray], strings: StringTable) -> dict[str, Any]:
        """The outputs by name."""
        results, place = {}, 0
        for part in self.outputs:
            results[part.name] = part.restore(tensors[place : place + part.count], strings)
            place += part.count
        return results

    def table(self) -> StringTable:
        """The table of one call."""
        return StringTable(base=self.strings)

    def to_json(self) -> list[Any]:
        """For the header of a module file."""
        parts = [[_layout_to_json(layout) for layout in part] for part in (self.inputs, self.outputs)]
        return [*parts, list(self.strings.texts[1:])]


def signature_from_json(data: Any) -> Signature | None:
    """The inverse; of None, None. Any of several exceptions when the data has another form."""
    if data is None:
        return None
    *parts, texts = data
    inputs, outputs = (tuple(_layout_from_json(*item) for item in part) for part in parts)
    return Signature(inputs, outputs, StringTable(map(str, texts)))


def _layout_to_json(layout: ValueLayout) -> list[Any]:
    fields = [layout.name, layout.form, layout.count, layout.dtype, layout.kind, list(layout.labels)]
    return fields if layout.sizes is None else [*fields, list(layout.sizes)]


def _layout_from_json(
    name: str, form: str, count: int, dtype: str, kind: str, labels: list[Any], sizes: list[int | None] | None = None
) -> ValueLayout:
    return ValueLayout(name, form, count, dtype, kind, tuple(labels), None if sizes is None else tuple(sizes))


def require_numbers(signature: Signature | None, what: str) -> None:
    """UnsupportedError where `what` cannot make inputs up: not all are tensors of numbers."""
    if signature is not None:
        others = "; ".join(str(part) for part in (*signature.inputs, *signature.outputs) if not part.is_plain) or "strings within"
        raise UnsupportedError(f"{what}: it takes models of tensors of numbers only, and this one has {others}", code="TC1017")


def signature_of(
    inputs: Sequence[ValueLayout], outputs: Sequence[ValueLayout], strings: StringTable, has_strings: bool
) -> Signature | None:
    """The signature; None where all are tensors of numbers, and there are no strings of the call in between (`has_strings`)."""
    if not has_strings and all(part.is_plain for part in (*inputs, *outputs)):
        return None
    return Signature(tuple(inputs), tuple(outputs), strings)
