"""Where values of a plan are: pieces of memory, and places in them."""

from __future__ import annotations

from dataclasses import dataclass

from tc.ir.expr import Const, Expr, const
from tc.ir.plan import SlotPlace
from tc.ir.types import TensorType
from tc.passes.graph.assign_storage import StorageRegion, region_of_type

NOT_YET = 1 << 60
"""The time at which a storage begins that nothing was put into so far."""


@dataclass(eq=False)
class Storage:
    """A piece of memory. `region` is set for those in the arena; `index` numbers the others within their place."""

    place: SlotPlace
    index: int = 0
    type: TensorType | None = None
    start: int = 0
    end: int = 0
    region: StorageRegion | None = None
    taken: Storage | None = None

    @property
    def root(self) -> Storage:
        """The storage whose memory this one has taken over, or itself."""
        storage = self
        while storage.taken is not None:
            storage = storage.taken
        return storage


@dataclass(frozen=True)
class PossibleReuse:
    """At step `time` a kernel may make its first result, `result`, in the memory of any of the operands `operands[k]`, k in `allowed`."""

    time: int
    operands: tuple[StorageView, ...]
    allowed: tuple[int, ...]
    result: StorageView


@dataclass(eq=False)
class StorageView:
    """Where a value is: a storage and a byte offset into it."""

    storage: Storage
    offset: Expr = const(0)


def is_whole(view: StorageView) -> bool:
    """Whether a view starts where its storage does."""
    return isinstance(view.offset, Const) and view.offset.value == 0


def have_same_size(first: Storage, second: Storage) -> bool:
    """Whether two storages of tensors take the same bytes, for all sizes of dims."""
    assert first.type is not None and second.type is not None
    a, b = region_of_type(first.type, 0, 0), region_of_type(second.type, 0, 0)
    return a.count == b.count and a.unit is b.unit
