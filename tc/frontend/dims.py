"""What a user promises about a symbolic dim of a model."""

from __future__ import annotations

from dataclasses import dataclass

from tc.errors import UserError


@dataclass(frozen=True)
class Dim:
    """A promise about a dim: `lo <= n <= hi` (hi None: no bound) and `n % multiple_of == 0`."""

    lo: int = 0
    hi: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
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
