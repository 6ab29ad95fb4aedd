"""Moving data: mov, ld, st, cvta, atom, red, and the wavefronts of accesses to shared memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx import numerics
from tests.ptx.coder import Coder, Run, builds, spread
from tests.ptx.element_types import TYPES, UNSIGNED, PtxType
from tests.ptx.errors import OutOfBounds, Race
from tests.ptx.machine import Machine
from tests.ptx.memory import LOCAL, SHARED, WINDOW
from tests.ptx.program import Place, Variable
from tests.ptx.syntax import Group, Name

# ---------------------------------------------------------------- mov


@builds("mov")
def build_mov(c: Coder) -> Run:
    type = c.type()
    target, source = c.operand(0), c.operand(1)
    if isinstance(target, Group):
        return build_unpack(c, type)
    if isinstance(source, Group):
        return build_pack(c, type)
    if isinstance(source, Name) and isinstance(c.scope.find(source.name), Place):
        raise c.unsupported("address of a label")
    write = c.destination(0, type)
    read = c.source(1, type)
    return lambda m, active: write(m, active, read(m, active))


def build_unpack(c: Coder, type: PtxType) -> Run:
    """`mov.b64 {lo, hi}, x`: the first takes the low bits."""
    parts = c.items(0)
    part = TYPES[f"b{type.bits // len(parts)}"]
    writes = [c.destination(p, part) for p in parts]
    read = c.source(1, TYPES[f"b{type.bits}"])

    def run(m: Machine, active: np.ndarray | None) -> None:
        pieces = np.ascontiguousarray(read(m, active)).view(part.unsigned).reshape(-1, len(parts)).copy()
        for i, write in enumerate(writes):
            write(m, active, pieces[:, i])

    return run


def build_pack(c: Coder, type: PtxType) -> Run:
    parts = c.items(1)
    part = TYPES[f"b{type.bits // len(parts)}"]
    reads = [c.source(p, part) for p in parts]
    write = c.destination(0, TYPES[f"b{type.bits}"])

    def run(m: Machine, active: np.ndarray | None) -> None:
        values = np.broadcast_arrays(*(read(m, active) for read in reads))
        write(m, active, np.stack(values, 1).view(UNSIGNED[type.bits])[:, 0])

    return run


# ---------------------------------------------------------------- addresses

SPACES = ("global", "shared", "local", "param", "const", "generic")
GENERIC_BASE = {"shared": SHARED, "local": LOCAL, "global": 0, "const": 0, "param": 0}


def take_space(c: Coder) -> str:
    """The state space that the modifiers name; `generic` without one."""
    for mod in list(c.mods):
        space, _, part = mod.partition("::")
        if space in SPACES and part in ("", "cta", "cluster", "entry", "func"):
            c.mods.remove(mod)
            return space
    return "generic"


@builds("cvta")
def build_cvta(c: Coder) -> Run:
    into = c.flag("to")
    base = GENERIC_BASE[take_space(c)]
    type = c.type("u64", "u32")
    write, read = c.destination(0, type), c.source(1, type)
    change = np.uint64(-base & (2**64 - 1) if into else base)
    return lambda m, active: write(m, active, (read(m, active) + change).astype(type.dtype))


@builds("isspacep")
def build_isspacep(c: Coder) -> Run:
    space = take_space(c)
    write, read = c.destination(0, "pred"), c.source(1, "u64")
    base = GENERIC_BASE[space]

    def run(m: Machine, active: np.ndarray | None) -> None:
        address = read(m, active).astype(np.int64)
        if base:
            write(m, active, (address >= base) & (address < base + WINDOW))
        else:
            write(m, active, (address < SHARED) if space == "global" else np.zeros_like(address, bool))

    return run


@builds("mapa")
def build_mapa(c: Coder) -> Run:
    """A cluster is one block: every shared address is its own."""
    take_space(c)
    type = c.type("u64", "u32")
    write, read = c.destination(0, type), c.source(1, type)
    return lambda m, active: write(m, active, read(m, active))


# ---------------------------------------------------------------- ld and st

HINTS = ("ca", "cg", "cs", "cv", "lu", "nc", "wb", "wt", "weak", "relaxed", "acquire", "release", "volatile", "mmio",
         "cta", "cluster", "gpu", "sys", "unified")  # fmt: skip
HINT_PREFIXES = ("L1::", "L2::")


class Access:
    """Which memory an instruction goes to, and how its lanes reach it."""

    def __init__(self, c: Coder, position: int) -> None:
        self.strong = any(m in ("relaxed", "acquire", "release", "volatile") for m in c.mods)
        if "L2::cache_hint" in c.mods:
            c.operands = c.operands[:-1]
        self.constant = "nc" in c.mods
        self.space = take_space(c)
        c.drop(*HINTS, prefixes=HINT_PREFIXES)
        self.address = c.address(position)
        symbol = c.base_symbol(position)
        if self.space == "param":
            self.space = symbol.space if isinstance(symbol, Variable) else "generic"

    def parts(self, m: Machine, active: np.ndarray | None) -> list[tuple[str, np.ndarray, np.ndarray | slice]]:
        """(space, addresses inside it, which of the active lanes), addresses one per lane, or [1] on the heap."""
        address = self.address(m, active)
        if self.space in ("global", "const", "param"):
            return [("heap", address, slice(None))]
        address = spread(address, m.count(active))
        if self.space in ("shared", "local"):
            return [(self.space, address, slice(None))]
        if (address < SHARED).all() and (address >= WINDOW).all():
            return [("heap", address, slice(None))]
        return self.generic_parts(address)

    def generic_parts(self, address: np.ndarray) -> list[tuple[str, np.ndarray, np.ndarray | slice]]:
        shared = (address >= SHARED) & (address < SHARED + WINDOW)
        local = (address >= LOCAL) & (address < LOCAL + WINDOW)
        found: list[tuple[str, np.ndarray, np.ndarray | slice]] = []
        for space, base, which in (("shared", SHARED, shared), ("local", LOCAL, local), ("heap", 0, ~shared & ~local)):
            if which.all():
                return [(space, address - base, slice(None))]
            if which.any():
                found.append((space, address[which] - base, which))
        return found

    def load(self, m: Machine, active: np.ndarray | None, size: int, count: int) -> np.ndarray:
        """unsigned[n, count], or [1, count] where all lanes read one address of the heap."""
        parts = self.parts(m, active)
        if isinstance(parts[0][2], slice):
            return self.load_part(m, parts[0][0], parts[0][1], m.indices(active), size, count)
        lanes = m.indices(active)
        result = np.zeros((len(lanes), count), UNSIGNED[8 * size])
        for space, address, which in parts:
            result[which] = self.load_part(m, space, address, lanes[which], size, count)
        return result

    def load_part(self, m: Machine, space: str, address: np.ndarray, lanes: np.ndarray, size: int, count: int) -> np.ndarray:
        if space == "heap":
            values = m.heap.load(address, size, count)
            if m.history is not None and not self.strong and self.space in ("global", "generic"):
                m.history.read(m, lanes, spread(address, len(lanes)), size * count, self.constant)
            return values
        if space == "local":
            return m.local.load(lanes, address, size, count)
        count_wavefronts(m, lanes, address, size * count)
        if self.strong:
            offset = m.shared.touch_atomic(m.lane_block[lanes], m.lane_warp[lanes], address, size * count)
            return m.shared.views[size][(offset // size)[:, None] + np.arange(count)]
        return m.shared.load(m.lane_block[lanes], m.lane_warp[lanes], address, size, count)

    def store(self, m: Machine, active: np.ndarray | None, size: int, values: np.ndarray) -> None:
        lanes = m.indices(active)
        for space, address, which in self.parts(m, active):
            chosen = spread_rows(values, len(lanes))[which]
            self.store_part(m, space, address, lanes[which], size, chosen)

    def store_part(self, m: Machine, space: str, address: np.ndarray, lanes: np.ndarray, size: int, values: np.ndarray) -> None:
        if space == "heap":
            store_global(m, lanes, spread(address, len(lanes)), size, values, self.strong)
        elif space == "local":
            m.local.store(lanes, address, size, values)
        elif self.strong:
            count_wavefronts(m, lanes, address, size * values.shape[1])
            offset = m.shared.touch_atomic(m.lane_block[lanes], m.lane_warp[lanes], address, size * values.shape[1], initialised=False)
            m.shared.views[size][(offset // size)[:, None] + np.arange(values.shape[1])] = values
        else:
            count_wavefronts(m, lanes, address, size * values.shape[1])
            m.shared.store(m.lane_block[lanes], m.lane_warp[lanes], address, size, values)


def store_global(m: Machine, lanes: np.ndarray, address: np.ndarray, size: int, values: np.ndarray, strong: bool = False) -> None:
    """Write values unsigned[n, count]; two lanes that write different values to one place are a race."""
    offset = m.heap.check(address, size * values.shape[1], True)
    if m.history is not None and not strong:
        m.history.write(m, lanes, address, values)
    m.heap.store(address, size, values)
    lost = m.heap.take(offset, size, values.shape[1]) != values
    if lost.any() and not strong:
        raise Race("two threads write different values to one place of global memory by one instruction", int(np.nonzero(lost)[0][0]))


def spread_rows(values: np.ndarray, count: int) -> np.ndarray:
    return np.broadcast_to(values, (count, values.shape[1])) if values.shape[0] != count else values


def take_vector(c: Coder) -> int:
    return int(c.choose("v2", "v4", "v8", default="v1")[1])


@builds("ld", "ldu")
def build_ld(c: Coder) -> Run:
    access = Access(c, 1)
    count, type = take_vector(c), c.type()
    parts = c.items(0)
    if len(parts) != count:
        raise c.unsupported(f"{len(parts)} registers for {count} values")
    writes = [c.destination(p, type) for p in parts]

    def run(m: Machine, active: np.ndarray | None) -> None:
        values = access.load(m, active, type.size, count)
        for i, write in enumerate(writes):
            write(m, active, values[:, i].view(type.dtype))

    return run


@builds("st")
def build_st(c: Coder) -> Run:
    access = Access(c, 0)
    count, type = take_vector(c), c.type()
    parts = c.items(1)
    if len(parts) != count:
        raise c.unsupported(f"{len(parts)} registers for {count} values")
    reads = [c.source(p, type) for p in parts]

    def run(m: Machine, active: np.ndarray | None) -> None:
        values = np.broadcast_arrays(*(read(m, active).view(type.unsigned) for read in reads))
        access.store(m, active, type.size, np.stack(values, 1))

    return run


@builds("createpolicy")
def build_createpolicy(c: Coder) -> Run:
    """A hint for caches, as a value that only hints take."""
    c.mods.clear()
    write = c.destination(0, "b64")
    return lambda m, active: write(m, active, np.zeros(1, np.uint64))


# ---------------------------------------------------------------- wavefronts

BANKS, WORD = 32, 4


def wavefronts(phase: np.ndarray, word: np.ndarray) -> np.ndarray:
    """How often the most wanted bank must answer in each phase, which is the time that the phase takes.

    `phase[i]` and `word[i]` are of one 4-byte word that a lane wants; lanes that want the same word share an answer.
    """
    pairs = np.unique(phase.astype(np.int64) << 32 | word)
    distinct, number = np.unique(pairs >> 32, return_inverse=True)
    answers = np.bincount(number * BANKS + pairs % BANKS, minlength=len(distinct) * BANKS)
    return answers.reshape(-1, BANKS).max(1)


def count_wavefronts(m: Machine, lanes: np.ndarray, address: np.ndarray, size: int) -> None:
    """Note an access of `size` bytes a lane: a warp needs one phase for words, two for 8 bytes, four for 16."""
    lanes_a_phase = 32 if size <= 4 else 128 // size
    phase = lanes // lanes_a_phase
    word = address.astype(np.int64) // WORD
    if size > WORD:
        words = size // WORD
        phase, word = np.repeat(phase, words), (word[:, None] + np.arange(words)).reshape(-1)
    note_wavefronts(m, len(m.warps_of(lanes)), phase, word)


def note_wavefronts(m: Machine, accesses: int, phase: np.ndarray, word: np.ndarray) -> None:
    answers = wavefronts(phase, word)
    total = m.conflicts.setdefault(m.pc, [0, 0])
    total[0] += accesses
    total[1] += int((answers - 1).sum())


# ---------------------------------------------------------------- atom and red


def exchange(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return new


def increment(old: np.ndarray, limit: np.ndarray) -> np.ndarray:
    return np.where(old >= limit, 0, old + 1).astype(old.dtype)


def decrement(old: np.ndarray, limit: np.ndarray) -> np.ndarray:
    return np.where((old == 0) | (old > limit), limit, old - 1).astype(old.dtype)


def bf16_add(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    return numerics.to_bf16(numerics.from_bf16(old) + numerics.from_bf16(new))


def packed(update: Callable, half: np.dtype) -> Callable:
    """A function of halves as one of 32-bit words that hold two."""
    return lambda old, new: update(old.view(half).copy(), np.ascontiguousarray(new).view(half)).view(np.uint32)


ATOMICS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "exch": exchange, "inc": increment, "dec": decrement,
}  # fmt: skip


def atomic_update(c: Coder, operation: str, type: PtxType) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    if type.kind == "f" and operation not in ("add", "exch", "min", "max"):
        raise c.unsupported(f"{operation} of {type.name}")
    if type.name == "bf16" and operation == "add":
        return bf16_add
    if type.name == "f16x2" and operation == "add":
        return packed(np.add, np.dtype(np.float16))
    if type.name == "bf16x2" and operation == "add":
        return packed(bf16_add, np.dtype(np.uint16))
    if not type.is_integer and type.kind != "f":
        raise c.unsupported(f"{operation} of {type.name}")
    return ATOMICS[operation]


@builds("atom", "red")
def build_atom(c: Coder) -> Run:
    if "async" in c.mods or "bulk" in c.mods:
        raise c.unsupported("an asynchronous reduction")
    at = 1 if c.opcode == "atom" else 0
    c.drop("noftz")
    operation = c.choose(*ATOMICS, "cas")
    access = Access(c, at)
    access.strong = True
    type = c.type()
    write = c.destination(0, type) if at else None
    value = c.source(at + 1, type)
    other = c.source(at + 2, type) if operation == "cas" else None
    update = (lambda old, new: new) if other is not None else atomic_update(c, operation, type)

    def run(m: Machine, active: np.ndarray | None) -> None:
        lanes = m.indices(active)
        values = spread(value(m, active), len(lanes))
        swapped = None if other is None else spread(other(m, active), len(lanes))
        old = np.zeros(len(lanes), type.dtype)
        for space, address, which in access.parts(m, active):
            view, index = place_atomic(m, space, spread(address, len(lanes)) if isinstance(which, slice) else address, lanes[which], type)
            if swapped is None:
                old[which] = apply_in_order(view, index, values[which], update)
            else:
                old[which] = compare_and_swap(view, index, values[which], swapped[which])
        if write is not None:
            write(m, active, old)

    return run


def place_atomic(m: Machine, space: str, address: np.ndarray, lanes: np.ndarray, type: PtxType) -> tuple[np.ndarray, np.ndarray]:
    """A view of the memory as values of the type, and where each lane's is."""
    if space == "heap":
        return m.heap.bytes.view(type.dtype), m.heap.check_words(address, type.size) // type.size
    if space == "local":
        raise OutOfBounds("an atomic operation on local memory", 0)
    count_wavefronts(m, lanes, address, type.size)
    offset = m.shared.touch_atomic(m.lane_block[lanes], m.lane_warp[lanes], address, type.size)
    return m.shared.bytes.view(type.dtype), offset // type.size


def apply_in_order(view: np.ndarray, index: np.ndarray, values: np.ndarray, update: Callable) -> np.ndarray:
    """Each lane in its turn: `view[index] = update(view[index], value)`; what each found there.

    Lanes of different places go together, those of one place one after the other.
    """
    old = np.empty_like(values)
    todo = np.arange(len(index))
    while len(todo):
        _, first = np.unique(index[todo], return_index=True)
        now = todo[first]
        place = index[now]
        old[now] = view[place]
        view[place] = update(view[place], values[now])
        todo = np.delete(todo, first)
    return old


def compare_and_swap(view: np.ndarray, index: np.ndarray, compare: np.ndarray, values: np.ndarray) -> np.ndarray:
    old = np.empty_like(values)
    for i in range(len(index)):
        old[i] = view[index[i]]
        if old[i] == compare[i]:
            view[index[i]] = values[i]
    return old


