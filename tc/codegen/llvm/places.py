"""Where the elements of buffers lie.

An index is reduced to a polynomial offset, split into what all lanes share, a constant, and what differs between lanes. Sums that
accesses share are computed once, so that only constants differ between unrolled copies.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tc.codegen.llvm.addresses import Address, Offset, Sum, offset_of
from tc.codegen.llvm.builder import FunctionBuilder, Module, Value, int_value, llvm_type
from tc.errors import CodegenError
from tc.ir.arith import Facts
from tc.ir.dtype import ALL_DTYPES, DType
from tc.ir.expr import Buffer, Expr, Var
from tc.ir.uses import reads_memory, variables


@dataclass(frozen=True)
class Lane:
    """The vectorized loop being emitted: its variable and its number of lanes."""

    var: Var
    lanes: int


@dataclass
class State:
    """What one emitted function needs: where values are."""

    builder: FunctionBuilder
    values: dict[Var, Value] = field(default_factory=dict)
    pointers: dict[Buffer, Value] = field(default_factory=dict)
    loaded: dict[Buffer, dict[str, Value]] = field(default_factory=dict)  # what memory holds here, but tiles, by the texts of loads
    tiles: dict[Buffer, dict[int, Value]] = field(default_factory=dict)  # the same of register tiles, by place
    stores: int = 0  # how many so far
    tile_numbers: dict[Buffer, int] = field(default_factory=dict)  # registers of buffers of scope `tile`
    tile_sizes: list[tuple[int, int]] = field(default_factory=list)  # of these registers, where there are any
    all_ones: str = ""  # the name of a number that has all bits set, which LLVM does not know


class PlaceEmitter:
    """What is known at a point of the emitted code, and where elements lie there. A subclass says what the value of an expression is."""

    def __init__(self, module: Module, facts: Facts, aliasing: Mapping[Buffer, str]) -> None:
        self.module = module
        self.facts = facts
        self.lane: Lane | None = None
        self.mask: Value | None = None
        self.guard: Value | None = None  # a number: where it is false, so is the mask in all lanes
        self.addresses: dict[tuple[Buffer, tuple[Expr, ...]], Address] = {}
        self.sums: dict[object, tuple[Address, Var | None, list[Value | None], Sum]] = {}
        self.dependence: dict[Expr, bool] = {}
        self.aliasing = aliasing
        self.inputs: frozenset[Buffer] = frozenset()  # what the kernel stores nothing to
        self.read_back: frozenset[Buffer] = frozenset()  # what it stores and reads
        self.lasting: frozenset[Buffer] = frozenset()  # of the inputs, those of which loads are held in registers across stores
        self.spare: set[Buffer] = set()  # tiles of registers whose masked lanes hold nothing
        self.prefetched: dict[Buffer, int] = {}  # how many bytes ahead
        self.prefetch_places: set[object] = set()
        self.in_parallel = False
        self.state = State(FunctionBuilder(module, shares=True))

    @property
    def b(self) -> FunctionBuilder:
        return self.state.builder

    @property
    def num_lanes(self) -> int:
        """Of the vectorized loop; 0 outside."""
        return 0 if self.lane is None else self.lane.lanes

    def value(self, expr: Expr) -> Value:
        """The value of an expression at this point."""
        raise NotImplementedError

    def where(self, condition: Value, emit: Callable[[], None], labels: tuple[str, str] = ("some", "rest")) -> None:
        """What happens only if a condition, a number, holds."""
        b = self.b
        yes, done = map(b.label, labels)
        b.branch_if(condition, yes, done)
        b.start_block(yes)
        with self.region():
            emit()
        b.branch(done)
        b.start_block(done)

    @contextmanager
    def region(self) -> Iterator[None]:
        """Code whose values do not dominate what follows, and that may run again or not at all: a branch, or the body of a loop."""
        state = self.state
        loaded, tiles, stores = state.loaded, state.tiles, state.stores
        state.loaded, state.tiles = self._lasting_of(loaded), {}
        with state.builder.scope():
            yield
        unchanged = state.stores == stores
        state.loaded, state.tiles = (loaded, tiles) if unchanged else (self._lasting_of(loaded), {})

    def _lasting_of(self, loaded: Mapping[Buffer, dict[str, Value]]) -> dict[Buffer, dict[str, Value]]:
        """What is known of memory that nothing stores to, whatever is done next: a copy."""
        return {buffer: {**loads} for buffer, loads in loaded.items() if buffer in self.lasting}

    @contextmanager
    def knowing(self, facts: Facts) -> Iterator[None]:
        """Inside, these facts hold. Addresses that they made simpler are not those outside."""
        outer, count = self.facts, len(self.addresses)
        self.facts = facts
        yield
        self.facts = outer
        while len(self.addresses) > count:
            self.addresses.popitem()

    def _numbers(self, key: tuple[Buffer, tuple[Expr, ...]]) -> tuple[Address, list[int]]:
        """An access, and the numbers that those of its variables are which are numbers here. Computed once, but for the numbers."""
        values, found = self.state.values, self.addresses.get(key)
        if found is not None:
            numbers = [values[var].known for var in found.numbers]
            if None not in numbers:
                return found, numbers  # type: ignore[return-value]
        found = self.addresses[key] = Address.of(offset_of(*key, self.facts) if found is None else found.offset, values)
        return found, [values[var].known for var in found.numbers]  # type: ignore[misc]

    def depends_on_lane(self, expr: Expr) -> bool:
        """Whether the value differs between lanes: by the lane variable, or through a Let that depends on it."""
        if self.lane is None:
            return False
        if isinstance(expr, Var):
            return self._differs(expr, self.lane.var)
        found = self.dependence.get(expr)
        if found is None:
            found = self.dependence[expr] = any(self._differs(var, self.lane.var) for var in variables(expr))
        return found

    def _differs(self, var: Var, lane: Var) -> bool:
        value = self.state.values.get(var)
        return var is lane or (value is not None and value.lanes > 0)

    def _offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Offset:
        key = (buffer, indices)
        address, numbers = self._numbers(key)
        found = self._sum(key, address)
        known = sum(map(operator.mul, address.factors, numbers), address.offset.constant + found.known)
        return Offset(self._shared(found), known, found.lane, found.varying, found.texts)

    def _sum(self, key: object, address: Address) -> Sum:
        """The terms of an address that are no numbers; what was found last as long as its variables have the values that they had."""
        if address.unknown is None:
            return self._add_up(address)
        lane, values = None if self.lane is None else self.lane.var, [self.state.values.get(var) for var in address.unknown]
        last = self.sums.get(key)
        if last is not None and last[0] is address and last[1] is lane and last[2] == values:
            return last[3]
        found = self._add_up(address)
        if not found.is_computed:
            self.sums[key] = address, lane, values, found
        return found

    def _add_up(self, address: Address) -> Sum:
        b, lane_var, known_values = self.state.builder, None if self.lane is None else self.lane.var, self.state.values
        parts: list[tuple[int, list[Value]]] = []
        known = lane_known = 0
        lane_value: Value | None = None
        varying: Value | None = None
        for monomial, coefficient in address.others:
            factor, values, lane_count, differs = coefficient, [], 0, False
            for atom in monomial:
                if atom is lane_var:
                    lane_count += 1
                    continue
                value = known_values.get(atom) or self._index(atom)  # type: ignore[call-overload]
                if value.known is not None:
                    factor *= value.known
                    continue
                values.append(value)
                differs = differs or (lane_var is not None and self.depends_on_lane(atom))
            if lane_count == 0 and not differs:
                if not values:
                    known += factor
                elif factor:
                    parts.append((factor, values))
            elif lane_count == 1 and not differs:
                if not values:
                    lane_known += factor
                else:
                    term = self._term(factor, values)
                    lane_value = term if lane_value is None else b.add(lane_value, term)
            else:
                lanes = [known_values[self.lane.var]] * lane_count if self.lane is not None else []
                term = self._term(factor, [*values, *lanes])
                varying = term if varying is None else b.binary("add", varying, term)
        lane = None if lane_var is None else int_value(lane_known)
        if lane_value is not None and lane is not None:
            lane = b.add(lane_value, lane)
        texts = tuple(["*".join([value.text for value in values] + [str(factor)]) for factor, values in parts])
        return Sum(tuple(parts), texts, known, lane, varying)

    def _shared(self, found: Sum) -> Value:
        """The value of the terms that all lanes share, computed once for all accesses with the same terms."""
        parts, texts = found.parts, found.texts
        if not parts:
            return int_value(0)

        def total() -> Value:
            result = self._term(*parts[0])
            for part in parts[1:]:
                result = self.b.add(result, self._term(*part))
            return result

        return self.state.builder.once(texts[0] if len(texts) == 1 else "+".join(sorted(texts)), total)

    def _index(self, atom: Expr) -> Value:
        """The value of a part of an index, computed once where that dominates unless it is read from memory."""
        if isinstance(atom, Var) or reads_memory(atom):
            return self.value(atom)
        values = self.state.values
        return self.b.once((atom, *[values.get(var) for var in variables(atom)]), lambda: self.value(atom))

    def _is_whole(self, buffer: Buffer, indices: tuple[Expr, ...], together: int = 0) -> bool:
        """Whether what all lanes share of an offset, its constant part aside, is known to be a whole number of bytes, or a multiple of so
        many elements."""
        values, together = self.state.values, together or buffer.dtype.per_byte
        for monomial, coefficient in self._numbers((buffer, indices))[0].others:
            if self.lane is not None and self.lane.var in monomial:
                continue
            if coefficient % together and any((values.get(atom) or self._index(atom)).known is None for atom in monomial):  # type: ignore[call-overload]
                return False
        return True

    def _term(self, factor: int, values: list[Value]) -> Value:
        result = values[0]
        for value in values[1:]:
            result = self.b.binary("mul", result, value)
        return result if factor == 1 else self.b.binary("mul", result, self.b.int(factor, result))

    def pointer_to(self, buffer: Buffer, uniform: Value, known: int) -> Value:
        """base + uniform + known; the sum with `uniform` is shared, so that only constants differ between unrolled copies."""
        element, state = memory_type(buffer.dtype), self.state
        base = state.pointers.get(buffer)
        if base is None:
            raise CodegenError(f"buffer {buffer} is used outside its scope")
        if uniform.known != 0:
            base = state.builder.place(base, element, uniform.text)
        return base if known == 0 else state.builder.place(base, element, str(known))


def memory_type(dtype: DType) -> str:
    return _MEMORY_TYPES[dtype]


_MEMORY_TYPES = {dtype: "i8" if dtype.is_bool else llvm_type(dtype) for dtype in ALL_DTYPES}
