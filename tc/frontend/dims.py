"""What a user promises about a symbolic dim of a model."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass

from tc.errors import UserError

LARGEST_SIZE = 2**63 - 1
"""Sizes are held in 64 bits."""


@dataclass(frozen=True)
class Dim:
    """A promise about a dim: `lo <= n <= hi` (hi None: no bound) and `n % multiple_of == 0`."""

    lo: int = 0
    hi: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        for name in ("lo", "hi", "multiple_of"):
            value = getattr(self, name)
            if name != "hi" or value is not None:
                object.__setattr__(self, name, _whole(value, f"Dim: {name}"))
        if self.lo < 0 or (self.hi is not None and self.hi < self.lo) or self.multiple_of < 1:
            raise UserError(f"{self} holds for no dim: needed are 0 <= lo <= hi and multiple_of >= 1")
        if self.hi is not None and self._first() > self.hi:
            raise UserError(f"{self}: no multiple of {self.multiple_of} lies between {self.lo} and {self.hi}")

    @property
    def fixed(self) -> int | None:
        """The only size that the promise leaves, or None."""
        first = self._first()
        return first if self.hi is not None and first + self.multiple_of > self.hi else None

    def _first(self) -> int:
        return -(-self.lo // self.multiple_of) * self.multiple_of


def checked_dims(dims: object, what: str = "dims") -> dict[str, Dim]:
    """Promises about dims by name, each as a Dim; a number promises just that size. UserError, saying `what`, for anything else."""
    if dims is None:
        return {}
    if not isinstance(dims, Mapping):
        raise UserError(f"{what} is a {type(dims).__name__}, must map names of dims to sizes or tc.Dim, such as {{'batch': 4}}")
    found = {}
    for name, promise in dims.items():
        if not isinstance(name, str):
            raise UserError(f"{what}: {name!r} is not the name of a dim")
        if not isinstance(promise, Dim):
            size = _whole(promise, f"{what}: {name}", " or a tc.Dim")
            if size < 0:
                raise UserError(f"{what}: {name} is {size}, must not be negative")
            promise = Dim(size, size)
        found[name] = promise
    return found


def _whole(value: object, what: str, other: str = "") -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise UserError(f"{what} is {value!r}, must be a whole number{other}")
    if abs(number) > LARGEST_SIZE:
        raise UserError(f"{what} is {number}, no size of a tensor: these are below 2**63")
    return number
