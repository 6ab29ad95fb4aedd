"""Loads and stores: which instruction reads or writes the elements of an access.

A distance of one element between lanes is a vector access, any other a gather or a scatter; a mask, where there is one, decides which
lanes happen.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tc.codegen.llvm.builder import Module, Value, int_value, mangled
from tc.codegen.llvm.byte_tables import REGISTER_BYTES, looked_up
from tc.codegen.llvm.packed import PackedPlace, is_packed, load_packed, store_packed
from tc.codegen.llvm.places import PlaceEmitter, memory_type
from tc.codegen.llvm.words import WordPlace, bytes_before, integer_in
from tc.errors import CodegenError
from tc.ir.arith import prove
from tc.ir.byte_table import ENTRIES, PERMUTES_BYTES, place_in_table
from tc.ir.dtype import DType
from tc.ir.expr import Buffer, Const, Expr, Load, MathCall, is_const, logical_and
from tc.ir.loop import Alloc, PrimFunc, Store, in_place_inputs, walk_statements
from tc.target import MOST_SHUFFLED_STRIDE

MOST_STRIDE, MOST_NARROW_STRIDE = 8, 16
"""Up to so many elements from lane to lane, a vector is taken from vectors that lie side by side: those and a shuffle for each of them take
less time than its lanes one by one. Of numbers below 32 bits, which no instruction gathers; of others under a mask as of windows."""

SLOW_GATHERS = "slow-gathers"
"""What a module has whose target loads the lanes of a vector faster one by one than by an instruction that gathers them."""


class MemoryEmitter(PlaceEmitter):
    """Accesses to memory at a point of the emitted code."""

    def load(self, node: Load) -> Value:
        buffer = node.buffer
        if (place := self.in_words(node)) is not None:
            return integer_in(self.b, place)
        if (entry := self._in_table(node)) is not None:
            return entry
        uniform, known, lane, varying, terms = self._offset(buffer, node.indices)
        if is_packed(buffer):
            return load_packed(self, buffer, PackedPlace(uniform, known, lane, varying, self._is_whole(buffer, node.indices)))
        if varying is not None or (lane is not None and lane.known not in (0, 1)):
            stride = None if lane is None or varying is not None else lane.known
            if stride is not None and 1 < stride <= MOST_NARROW_STRIDE and (column := self._place_in_row(node, stride)) is not None:
                return self._from_memory(self._column(buffer, uniform, known - column, column, stride), buffer.dtype)
            most = MOST_NARROW_STRIDE if buffer.dtype.bits < 32 else MOST_STRIDE if self.mask is None else MOST_SHUFFLED_STRIDE
            if stride is not None and 1 < stride <= most:
                return self._from_memory(self._strided_load(buffer, self.pointer_to(buffer, uniform, known), stride), buffer.dtype)
            return self._from_memory(self._gather(buffer, uniform, known, lane, varying), buffer.dtype)
        contiguous = lane is not None and lane.known == 1
        lanes = self.lane.lanes if contiguous and self.lane is not None else 0
        if buffer.scope == "register" and uniform.known == 0:
            held = self.state.tiles.get(buffer, {}).get(known)
            if held is not None and held.lanes == lanes:
                return self._from_memory(held, buffer.dtype)
        pointer = self.pointer_to(buffer, uniform, known)
        if not contiguous:
            loaded = self._shared_load(node, pointer)
            self._hold(buffer, uniform, known, loaded)
            return self._from_memory(loaded, buffer.dtype)
        if buffer in self.prefetched:
            self._prefetch_ahead(buffer, terms, uniform, known)
        is_whole = buffer.scope == "register" or buffer in self.spare  # all lanes exist
        if self.mask is None or is_whole or self._is_free(node):
            loaded = self.whole_load(buffer, pointer, lanes)
            self._hold(buffer, uniform, known, loaded)
        else:
            loaded = self.masked_load(buffer, pointer, self.b.splat(self.mask, lanes))
        return self._from_memory(loaded, buffer.dtype)

    def in_words(self, node: Load) -> WordPlace | None:
        """Where the elements of all lanes are in words that lie side by side; None where they do not, or under a mask."""
        buffer, dtype = node.buffer, node.buffer.dtype
        if self.lane is None or self.mask is not None or dtype.bits > 8 or not dtype.is_int or buffer.scope != "global":
            return None
        together = 32 // dtype.bits
        uniform, known, lane, varying, terms = self._offset(buffer, node.indices)
        if varying is not None or lane is None or lane.known != together or not self._is_whole(buffer, node.indices, together):
            return None
        inner = math.prod(int(dim.value) for dim in buffer.shape if isinstance(dim, Const))
        if inner % together:  # the last word might not be whole
            return None
        word, place = divmod(known, together)
        before = bytes_before(self.b, uniform, dtype)
        if buffer in self.prefetched:
            self._prefetch_ahead(buffer, terms, before, 4 * word)
        words = self._whole_words(buffer, self.pointer_to(buffer, before, 4 * word), self.lane.lanes)
        return WordPlace(words, place * dtype.bits, dtype)

    def load_words(self, operand: Load, lanes: int) -> Value:
        """So many words of 32 bits from an element on, the first in its word, outside vectorized loops."""
        buffer, dtype = operand.buffer, operand.buffer.dtype
        uniform, known, _, _, terms = self._offset(buffer, operand.indices)
        if not self._is_whole(buffer, operand.indices, 32 // dtype.bits) or known % (32 // dtype.bits):
            raise CodegenError(f"{operand} may begin inside a word")
        before, rest = bytes_before(self.b, uniform, dtype), known // dtype.per_byte
        if buffer in self.prefetched:
            self._prefetch_ahead(buffer, terms, before, rest)
        return self._whole_words(buffer, self.pointer_to(buffer, before, rest), lanes)

    def _whole_words(self, buffer: Buffer, pointer: Value, lanes: int) -> Value:
        text = f"load <{lanes} x i32>, {pointer}, align 1{self.aliasing.get(buffer, '')}"
        return self._loaded_once(buffer, text, lambda: self.b.emit(text, "i32", lanes))

    def _in_table(self, node: Load) -> Value | None:
        """What a table of bytes has for each lane, looked up in registers, which costs the same whatever lanes are active; None where it
        is no such table, or the machine has no permutations of bytes."""
        place = place_in_table(node)
        if place is None or not self.module.has(PERMUTES_BYTES) or not self.depends_on_lane(place) or self.num_lanes > REGISTER_BYTES:
            return None
        pointers = (self.pointer_to(node.buffer, int_value(0), k) for k in range(0, ENTRIES, REGISTER_BYTES))
        table = [self.whole_load(node.buffer, pointer, REGISTER_BYTES) for pointer in pointers]
        return self._from_memory(looked_up(self.module, self.b, table, self.value(place)), node.buffer.dtype)

    def _is_free(self, node: Load) -> bool:
        """Whether masked lanes may be loaded too, and better are: the machine has no masks for elements so narrow, and all are there."""
        if node.buffer.dtype.bits >= 32 or self.module.has("avx512bw"):
            return False
        return self.is_there(node)

    def is_there(self, node: Load) -> bool:
        """Whether an element is known to be in its buffer whatever the conditions around say."""
        pairs = zip(node.indices, node.buffer.shape, strict=True)
        return all(_is_thread(index) or prove(logical_and(index >= 0, index < dim), self.facts) is True for index, dim in pairs)

    def load_vector(self, operand: Load, lanes: int) -> Value:
        """So many elements from one on, outside vectorized loops."""
        if is_packed(operand.buffer):
            raise CodegenError(f"{operand.buffer} shares bytes; no instruction on tiles takes it")
        uniform, known, _, _, _ = self._offset(operand.buffer, operand.indices)
        held = self.state.tiles.get(operand.buffer, {}).get(known) if uniform.known == 0 else None
        if held is not None and held.lanes == lanes:
            return held
        loaded = self.whole_load(operand.buffer, self.pointer_to(operand.buffer, uniform, known), lanes)
        self._hold(operand.buffer, uniform, known, loaded)
        return loaded

    def load_bits(self, operand: Load, element: str) -> Value:
        """The bytes from one element on as one number, outside vectorized loops; not from a register tile."""
        place, aliasing = self.place(operand.buffer, operand.indices), self.aliasing.get(operand.buffer, "")
        text = f"load {element}, {place}, align {operand.buffer.dtype.size_bytes}{aliasing}"
        return self._loaded_once(operand.buffer, text, lambda: self.b.emit(text, element))

    def store_vector(self, operand: Load, value: Value) -> None:
        """Store a vector from one element on, outside vectorized loops."""
        if is_packed(operand.buffer):
            raise CodegenError(f"{operand.buffer} shares bytes; no instruction on tiles stores it")
        uniform, known, _, _, _ = self._offset(operand.buffer, operand.indices)
        self.store_at(operand.buffer, self.pointer_to(operand.buffer, uniform, known), value)
        self._stored(operand.buffer, uniform, known, value)

    def _hold(self, buffer: Buffer, uniform: Value, known: int, value: Value) -> None:
        """Remember what is at a fixed place of a register tile. All that is remembered of a tile has one width, and lies at its
        multiples, so that no two overlap."""
        if buffer.scope != "register":
            return
        held = self.state.tiles.get(buffer)
        if held is None:
            held = self.state.tiles[buffer] = {}
        elif held and next(iter(held.values())).lanes != value.lanes:
            held.clear()
        if uniform.known == 0 and known % (value.lanes or 1) == 0:
            held[known] = value if value.known is None else value._replace(known=None)

    def _stored(self, buffer: Buffer, uniform: Value, known: int, value: Value | None) -> None:
        """Forget what may lie where something was stored, and remember `value` if it is all that was."""
        self.state.stores += 1
        if buffer.scope != "register":
            self.state.loaded = self._lasting_of(self.state.loaded)
        elif value is None or uniform.known != 0 or known % (value.lanes or 1):
            self.state.tiles.pop(buffer, None)
        else:
            self._hold(buffer, uniform, known, value)

    def forget_memory(self) -> None:
        """Something else has run, that may have stored anywhere."""
        self.state.stores += 1
        self.state.loaded, self.state.tiles = self._lasting_of(self.state.loaded), {}

    def _loaded_once(self, buffer: Buffer, text: str, load: Callable[[], Value]) -> Value:
        """What a load of this text gives, `load` its code: none again as long as what it gave stays known."""
        known = self.state.loaded.setdefault(buffer, {})
        found = known.get(text)
        if found is None:
            found = known[text] = load()
        return found

    def whole_load(self, buffer: Buffer, pointer: Value, lanes: int) -> Value:
        """Elements side by side, or one (`lanes` 0), which all exist. Nothing is loaded again as long as nothing is stored."""
        element = memory_type(buffer.dtype)
        kind = f"<{lanes} x {element}>" if lanes else element
        text = f"load {kind}, ptr {pointer.text}, align {self.align_of(buffer, lanes)}{self.aliasing.get(buffer, '')}"
        if buffer.scope == "register":  # see `tiles`
            return self.b.emit(text, element, lanes)
        is_odd = lanes & (lanes - 1) and buffer.dtype.bits >= 32 and buffer in self.inputs and self.module.has("avx512vl")
        load = (lambda: self._odd_load(buffer, pointer, lanes)) if is_odd else (lambda: self.b.emit(text, element, lanes))
        return self._loaded_once(buffer, text, load)

    def _odd_load(self, buffer: Buffer, pointer: Value, lanes: int) -> Value:
        """As many elements as no vector has, by one masked load: LLVM would put them together from shorter vectors.

        Not of what was stored a moment ago, which such a load waits for until it is in the cache.
        """
        element, whole = memory_type(buffer.dtype), 1 << (lanes - 1).bit_length()
        name, vector = f"llvm.masked.load.v{whole}{_short(element)}.p0", f"<{whole} x {element}>"
        self.module.declare(name, vector, ["ptr", f"<{whole} x i1>", vector])
        mask = ", ".join(f"i1 {str(lane < lanes).lower()}" for lane in range(whole))
        text = f"call {vector} @{name}(ptr align {buffer.dtype.size_bytes} {pointer.text}, <{whole} x i1> <{mask}>, {vector} poison)"
        loaded = self.b.emit(text, element, whole)
        order = ", ".join(f"i32 {lane}" for lane in range(lanes))
        return self.b.emit(f"shufflevector {loaded}, {vector} poison, <{lanes} x i32> <{order}>", element, lanes)

    def _strided_load(self, buffer: Buffer, pointer: Value, stride: int) -> Value:
        """Every second, third ... element, out of vectors that lie side by side. The last one ends with the last element wanted: nothing
        is read that is not between two of them."""
        assert self.lane is not None
        element, lanes, b = memory_type(buffer.dtype), self.lane.lanes, self.b
        places = [stride * lane for lane in range(lanes)]
        starts = [min(part * lanes, max(places[-1] + 1 - lanes, 0)) for part in range(stride)]
        mask = None if self.mask is None else b.splat(self.mask, lanes)
        parts = []
        for start in starts:
            place = b.emit(f"getelementptr inbounds {element}, {pointer}, i64 {start}", "ptr") if start else pointer
            if mask is None:
                text = f"load <{lanes} x {element}>, {place}, align {buffer.dtype.size_bytes}{self.aliasing.get(buffer, '')}"
                parts.append(b.emit(text, element, lanes))
                continue
            wanted = [divmod(start + each, stride) for each in range(lanes)]
            order = ", ".join(f"i32 {lane if rest == 0 else lanes}" for lane, rest in wanted)
            text = f"shufflevector {mask}, <{lanes} x i1> zeroinitializer, <{lanes} x i32> <{order}>"
            parts.append(self.masked_load(buffer, place, b.emit(text, "i1", lanes)))
        result, kept = parts[0], {lane: place for lane, place in enumerate(places) if place < lanes}
        for start, part in zip(starts[1:], parts[1:], strict=True):
            kept |= {lane: lanes + place - start for lane, place in enumerate(places) if lane not in kept and place < start + lanes}
            order = ", ".join(f"i32 {kept[lane]}" if lane in kept else "i32 poison" for lane in range(lanes))
            result = b.emit(f"shufflevector {result}, {part}, <{lanes} x i32> <{order}>", element, lanes)
            kept = {lane: lane for lane in kept}
        return result

    def _place_in_row(self, node: Load, size: int) -> int | None:
        """Which of the `size` elements of a row each lane loads, if it is the same in all of them, and all of the rows are there."""
        if self.mask is not None or not is_const(node.buffer.shape[-1], size) or node.buffer.scope == "register":
            return None
        return self.value(node.indices[-1]).known

    def _column(self, buffer: Buffer, uniform: Value, known: int, place: int, size: int) -> Value:
        """One element of each row of `size`, out of vectors that lie side by side from the first row on: even places and odd ones are taken
        apart as long as there are as many, which is the same for several columns."""
        assert self.lane is not None
        lanes = self.lane.lanes
        parts = [self.whole_load(buffer, self.pointer_to(buffer, uniform, known + k * lanes), lanes) for k in range(size)]
        while size % 2 == 0:
            chosen = range(place % 2, 2 * lanes, 2)
            parts = [self.b.shuffled(low, high, chosen) for low, high in zip(parts[::2], parts[1::2], strict=True)]
            size, place = size // 2, place // 2
        places = [divmod(size * lane + place, lanes) for lane in range(lanes)]  # the part that has the element, and where in it
        result = parts[0]
        for k in range(1, size):
            order = [lanes + at if part == k else at if k == 1 and part == 0 else lane for lane, (part, at) in enumerate(places)]
            result = self.b.shuffled(result, parts[k], order)
        return result

    def _prefetch_ahead(self, buffer: Buffer, terms: tuple[str, ...], uniform: Value, known: int) -> None:
        """Prefetch what the loop will load some iterations later, once per address: `terms` of it are in `uniform`."""
        key = (buffer, known, terms)
        if key in self.prefetch_places:
            return
        self.prefetch_places.add(key)
        ahead = self.prefetched[buffer] // buffer.dtype.size_bytes
        element, base = memory_type(buffer.dtype), self.state.pointers[buffer]
        self._prefetch_at(self.b.emit(f"getelementptr {element}, {base}, {self.b.add(uniform, int_value(known + ahead))}", "ptr"))

    def prefetch_rows(self, first: Load, rows: int, pitch: int) -> None:
        """The same for rows of at most a cache line that begin `pitch` elements apart."""
        if first.buffer in self.prefetched:
            uniform, known, _, _, terms = self._offset(first.buffer, first.indices)
            for row in range(rows):
                self._prefetch_ahead(first.buffer, terms, uniform, known + row * pitch)

    def prefetch(self, buffer: Buffer, indices: tuple[Expr, ...]) -> None:
        """Bring the cache line of one element close, unless it shares a byte."""
        if not is_packed(buffer):
            self._prefetch_at(self.place(buffer, indices))

    def place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Value:
        """A pointer to one element, outside vectorized loops."""
        uniform, known, _, _, _ = self._offset(buffer, indices)
        if is_packed(buffer):
            raise CodegenError(f"an element of {buffer} has no address of its own")
        return self.pointer_to(buffer, uniform, known)

    def _prefetch_at(self, place: Value) -> None:
        self.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
        self.b.emit_void(f"call void @llvm.prefetch.p0({place}, i32 0, i32 3, i32 1)")

    def _shared_load(self, node: Load, pointer: Value) -> Value:
        """A load that all lanes share; without a branch, which costs more than sums of products, where its element is known to be there."""
        if self.mask is not None and self.mask.lanes and self.is_there(node):
            return self.whole_load(node.buffer, pointer, 0)
        return self.scalar_load(node.buffer, pointer)

    def scalar_load(self, buffer: Buffer, pointer: Value) -> Value:
        """A load that all lanes share. Under a mask it happens only if some lane is active."""
        if self.mask is None or self.state.pointers.get(buffer) is None or not self.mask.lanes:
            return self.whole_load(buffer, pointer, 0)
        element, align, b = memory_type(buffer.dtype), buffer.dtype.size_bytes, self.b
        any_lane = self.any_lane(self.mask)
        single = b.insert(Value("zeroinitializer", "i1", 1), any_lane, 0)
        name = f"llvm.masked.load.v1{_short(element)}.p0"
        vector = f"<1 x {element}>"
        self.module.declare(name, vector, ["ptr", "<1 x i1>", vector])
        loaded = b.emit(
            f"call {vector} @{name}(ptr align {align} {pointer.text}, {single}, {vector} zeroinitializer)", element, 1
        )
        return b.extract(loaded, 0)

    def any_lane(self, mask: Value) -> Value:
        """Whether a mask lets any lane through."""
        if not mask.lanes:
            return mask
        name = f"llvm.vector.reduce.or.{mangled(mask)}"
        self.module.declare(name, "i1", [mask.type])
        return self.b.emit(f"call i1 @{name}({mask})", "i1")

    def masked_load(self, buffer: Buffer, pointer: Value, mask: Value) -> Value:
        """A load of the lanes that are active.

        Where no lane may be, as in rows of padding, the buffer's begin stands for the place: lanes that are masked cannot fault, but
        a page that is not there takes a processor hundreds of cycles to ignore.
        """
        if self.guard is not None:
            pointer = self.b.select(self.guard, pointer, self.state.pointers[buffer])
        element, lanes, align = memory_type(buffer.dtype), mask.lanes, buffer.dtype.size_bytes
        vector = f"<{lanes} x {element}>"
        name = f"llvm.masked.load.v{lanes}{_short(element)}.p0"

        def load() -> Value:
            self.module.declare(name, vector, ["ptr", f"<{lanes} x i1>", vector])
            shown = self._hidden(mask) if lanes * align > self._register_bytes() else mask
            text = f"call {vector} @{name}(ptr align {align} {pointer.text}, {shown}, {vector} zeroinitializer)"
            return self.b.emit(text, element, lanes)

        return self._loaded_once(buffer, f"{name} {pointer.text}, {mask}", load)

    def vector_offset(self, uniform: Value, known: int, lane: Value | None, varying: Value | None) -> Value:
        assert self.lane is not None
        b, lanes = self.b, self.lane.lanes
        total = b.splat(b.add(uniform, int_value(known)), lanes)
        if lane is not None and lane.known != 0:
            total = b.binary("add", total, b.binary("mul", self.state.values[self.lane.var], b.splat(lane, lanes)))
        if varying is not None:
            total = b.binary("add", total, b.splat(varying, lanes))
        return total

    def _lane_pointers(
        self, buffer: Buffer, uniform: Value, known: int, lane: Value | None, varying: Value | None
    ) -> Value:
        """What all lanes share is part of the base, so that what is left may be known to be a number of 32 bits."""
        assert self.lane is not None
        offsets = self.vector_offset(int_value(0), 0, lane, varying)
        base = self.pointer_to(buffer, uniform, known)
        return self.b.emit(
            f"getelementptr inbounds {memory_type(buffer.dtype)}, {base}, {offsets}", "ptr", self.lane.lanes
        )

    def _gather(self, buffer: Buffer, uniform: Value, known: int, lane: Value | None, varying: Value | None) -> Value:
        return self.gather(buffer, self._lane_pointers(buffer, uniform, known, lane, varying))

    def gather(self, buffer: Buffer, pointers: Value) -> Value:
        """What lies at a place for each lane, in the lanes that are active; loads of the lanes one by one where these take less time."""
        element, lanes = memory_type(buffer.dtype), pointers.lanes
        if self.mask is None and self.module.has(SLOW_GATHERS):
            found = Value("poison", element, lanes)
            for lane in range(lanes):
                loaded = self.b.emit(f"load {element}, {self.b.extract(pointers, lane)}, align {buffer.dtype.size_bytes}", element)
                found = self.b.insert(found, loaded, lane)
            return found
        mask = self.b.splat(self.mask, lanes) if self.mask is not None else Value("splat (i1 true)", "i1", lanes)
        vector = f"<{lanes} x {element}>"
        name = f"llvm.masked.gather.v{lanes}{_short(element)}.v{lanes}p0"
        self.module.declare(name, vector, [f"<{lanes} x ptr>", f"<{lanes} x i1>", vector])
        align = buffer.dtype.size_bytes
        return self.b.emit(
            f"call {vector} @{name}(<{lanes} x ptr> align {align} {pointers.text}, {mask}, {vector} zeroinitializer)",
            element,
            lanes,
        )

    def store_value(self, stmt: Store, value: Value) -> None:
        buffer = stmt.buffer
        uniform, known, lane, varying, _ = self._offset(buffer, stmt.indices)
        if is_packed(buffer):
            store_packed(self, buffer, PackedPlace(uniform, known, lane, varying, self._is_whole(buffer, stmt.indices)), value)
            self._stored(buffer, uniform, known, None)
            return
        element, align = memory_type(buffer.dtype), buffer.dtype.size_bytes
        if self.lane is None:
            self.store_at(buffer, self.pointer_to(buffer, uniform, known), value)
            self._stored(buffer, uniform, known, value)
            return
        lanes = self.lane.lanes
        value = self.b.splat(value, lanes)
        if varying is None and lane is not None and lane.known == 1:
            pointer = self.pointer_to(buffer, uniform, known)
            if self.mask is not None and buffer.scope == "register" and buffer not in self.spare:
                # Blend, so that the tile can live in registers.
                old = self.b.emit(f"load {value.type}, {pointer}, align {align}", value.element, lanes)
                value = self.b.select(self.b.splat(self.mask, lanes), value, old)
            if self.mask is None or buffer.scope == "register" or buffer in self.spare:
                if buffer in self.read_back and buffer.scope != "register":
                    self._store_parts(buffer, uniform, known, value)
                else:
                    self.store_at(buffer, pointer, value)
                self._stored(buffer, uniform, known, value)
                return
            self._stored(buffer, uniform, known, None)
            name = f"llvm.masked.store.v{lanes}{_short(element)}.p0"
            self.module.declare(name, "void", [value.type, "ptr", f"<{lanes} x i1>"])
            mask = self.b.splat(self.mask, lanes)
            if element[0] == "i" and element != "i64":
                mask = self._hidden(mask)
            self.b.emit_void(f"call void @{name}({value}, ptr align {align} {pointer.text}, {mask})")
            return
        self._stored(buffer, uniform, known, None)
        pointers = self._lane_pointers(buffer, uniform, known, lane, varying)
        mask = self.b.splat(self.mask, lanes) if self.mask is not None else Value("splat (i1 true)", "i1", lanes)
        name = f"llvm.masked.scatter.v{lanes}{_short(element)}.v{lanes}p0"
        self.module.declare(name, "void", [value.type, f"<{lanes} x ptr>", f"<{lanes} x i1>"])
        self.b.emit_void(f"call void @{name}({value}, <{lanes} x ptr> align {align} {pointers.text}, {mask})")

    def _store_parts(self, buffer: Buffer, uniform: Value, known: int, value: Value) -> None:
        """Store a vector in parts that registers hold: LLVM finds these again where they are read, but parts of wider ones by shifts."""
        lanes = self._register_bytes() // buffer.dtype.size_bytes
        if value.lanes <= lanes or value.lanes % lanes:
            lanes = value.lanes
        for first in range(0, value.lanes, lanes):
            part = value if lanes == value.lanes else self.b.shuffled(value, value, range(first, first + lanes))
            self.store_at(buffer, self.pointer_to(buffer, uniform, known + first), part)

    def _register_bytes(self) -> int:
        """Of the widest vectors of the target."""
        return next((size for feature, size in (("avx512f", 64), ("avx", 32)) if self.module.has(feature)), 16)

    def _hidden(self, mask: Value) -> Value:
        """The mask, so that LLVM does not know its lanes.

        Where LLVM 22 knows that one lane alone is stored, of integers that are wider in registers than in memory, it stores the wide
        number: up to seven bytes that belong to others. And of a load that it cuts in registers it loads one of them whole, without its
        mask, if it finds then that none of its lanes is active.
        """
        state = self.state
        if not state.all_ones:
            state.all_ones = self.b.name("ones")
            self.b.entry.append(f'  {state.all_ones} = call i64 asm "", "=r,0"(i64 -1)')
        ones, count = Value(state.all_ones, "i64"), min(mask.lanes, 64)
        if count < 64:
            ones = self.b.emit(f"trunc {ones} to i{count}", f"i{count}")
        lanes = self.b.emit(f"bitcast {ones} to <{count} x i1>", "i1", count)
        if count < mask.lanes:
            order = ", ".join(f"i32 {lane % count}" for lane in range(mask.lanes))
            lanes = self.b.emit(f"shufflevector {lanes}, {lanes.type} poison, <{mask.lanes} x i32> <{order}>", "i1", mask.lanes)
        return self.b.binary("and", mask, lanes)

    def store_scalar(self, stmt: Store, value: Value) -> None:
        """Store a number that has been computed, outside vectorized loops."""
        uniform, known, lane, varying, _ = self._offset(stmt.buffer, stmt.indices)
        if is_packed(stmt.buffer):
            store_packed(self, stmt.buffer, PackedPlace(uniform, known, lane, varying, self._is_whole(stmt.buffer, stmt.indices)), value)
            self._stored(stmt.buffer, uniform, known, None)
            return
        self.store_at(stmt.buffer, self.pointer_to(stmt.buffer, uniform, known), value)
        self._stored(stmt.buffer, uniform, known, value)

    def may_share_bytes(self, buffer: Buffer) -> bool:
        """Whether another thread may write elements in the bytes of those that this one writes."""
        return self.in_parallel

    def align_of(self, buffer: Buffer, lanes: int) -> int:
        """Bytes of which the place of an access to so many elements side by side is known to be a multiple; 0 lanes for one element."""
        return buffer.dtype.size_bytes

    def store_at(self, buffer: Buffer, pointer: Value, value: Value) -> None:
        align = self.align_of(buffer, value.lanes)
        self.b.emit_void(f"store {value}, {pointer}, align {align}{self.aliasing.get(buffer, '')}")

    def _from_memory(self, value: Value, dtype: DType) -> Value:
        return self.b.compare("icmp ne", value, self.b.int(0, value)) if dtype.is_bool else value  # every byte but 0 is true

    def to_memory(self, value: Value, dtype: DType) -> Value:
        if not dtype.is_bool:
            return value
        if value.known is not None:
            return int_value(value.known, "i8")
        return self.b.convert("zext", value, "i8")


def _short(element: str) -> str:
    return mangled(Value("", element))


def _is_thread(index: Expr) -> bool:
    """Whether an index is the number of the thread, of which a buffer has a part for each."""
    return isinstance(index, MathCall) and index.name == "thread_index"


MOST_SCOPES = 24
"""Of pieces of memory that are told apart."""


def alias_scopes(module: Module, func: PrimFunc) -> dict[Buffer, str]:
    """Metadata that tells LLVM which parameters do not overlap: all, but the first output and what it may take the place of.

    None overlaps scratch memory, which the bodies of parallel loops know by its address alone, nor does one piece of that another.
    """
    count = len(func.buffers)
    scratch = list(dict.fromkeys(node.buffer for node in walk_statements(func.body) if isinstance(node, Alloc)))
    if not 1 < count <= MOST_SCOPES:
        return {}
    first_output = len(func.inputs)
    shared = set(in_place_inputs(func))
    domain = module.add_metadata(f"distinct !{{!{len(module.metadata)}}}")
    own = [module.add_metadata(f"distinct !{{!{len(module.metadata)}, {domain}}}") for _ in func.buffers]
    apiece = scratch if len(scratch) <= MOST_SCOPES else scratch[:1]
    own_scratch = [module.add_metadata(f"distinct !{{!{len(module.metadata)}, {domain}}}") for _ in apiece]
    result = {}
    for k, buffer in enumerate(func.buffers):
        may_be_same = shared if k == first_output else {first_output} if k in shared else set()
        mine = module.add_metadata(f"!{{{own[k]}}}")
        others = [own[j] for j in range(count) if j != k and j not in may_be_same]
        apart = module.add_metadata(f"!{{{', '.join([*others, *own_scratch])}}}")
        result[buffer] = f", !alias.scope {mine}, !noalias {apart}"
    for k, each in enumerate(own_scratch):
        others = [*own, *(scope for scope in own_scratch if scope != each)]
        mine, apart = module.add_metadata(f"!{{{each}}}"), module.add_metadata(f"!{{{', '.join(others)}}}")
        known = scratch[k : k + 1] if len(apiece) == len(scratch) else scratch
        result |= dict.fromkeys(known, f", !alias.scope {mine}, !noalias {apart}")
    return result
