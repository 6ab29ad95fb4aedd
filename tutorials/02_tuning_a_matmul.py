# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Tuning a matmul
#
# A product of two 512 x 512 matrices is 512³ multiplications and as many additions. Three loops and one line of arithmetic say what it
# is; how long it takes depends on the order of the loops, on what is kept in registers, on what memory looks like, and the
# slowest and the fastest program for the same arithmetic differ by a factor of hundreds.
#
# In the first half of this tutorial you take the three loops to the limit of one core by hand, step by step, and measure what each step
# is worth. In the second half you let the machine do it: you assemble a small autotuner from the parts of the library (a space of
# schedules, features, a cost model, a search, a measuring rig) and watch it find such a program by itself.
#
# It helps to have seen tutorial 1. All numbers are measured where the notebook was run last, and texts that compare numbers are
# printed by code. Whoever runs it on another machine gets that machine's numbers.

# %%
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's own product is measured on one core, too
os.environ.setdefault("MKL_NUM_THREADS", "1")

import ctypes
import dataclasses
import time

import matplotlib.pyplot as plt
import numpy as np

from tc.autotune.cost_model.accuracy import Measured
from tc.autotune.cost_model.models import AnalyticCost, Program, RandomCost, RankCost
from tc.autotune.measure import LocalRunner
from tc.autotune.runner import Job, Workload
from tc.autotune.search.limits import refuse_large
from tc.autotune.search.policy import ModelSearch, RandomSearch
from tc.autotune.search.space import Space
from tc.codegen.llvm.emitter import emit_prim_func
from tc.codegen.llvm.jit import compile_object, disassemble, link
from tc.cost.features import FEATURE_NAMES
from tc.errors import ScheduleError
from tc.ir.dtype import f32
from tc.ir.printer import print_ir
from tc.measure.harness import Plan, time_interleaved
from tc.measure.machine import fma_limit
from tc.passes.pipeline import finish_loops
from tc.runtime.pool import get_pool
from tc.schedule.rules import apply_rules
from tc.schedule.step import Schedule, Step, Trace
from tc.target import native_target
from tc.te import create_prim_func, placeholder, reduce

QUICK = "TC_TUTORIAL_QUICK" in os.environ  # fewer repetitions and trials, for tests
plt.rcParams.update({"figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False, "font.size": 9})


def show(text, first=0, count=None, width=160):
    """Print `count` lines of a text, from line number `first` on; long lines are cut."""
    lines = text.strip("\n").splitlines()
    last = len(lines) if count is None else first + count
    for line in lines[first:last]:
        print(line if len(line) <= width else line[: width - 2] + " …")
    if last < len(lines):
        print(f"… {len(lines) - last} more lines")


machine = native_target()
target = dataclasses.replace(machine, cores=1)  # one core; the others come at the end
lanes = target.lanes(32)
print(f"vectors of {lanes} floats, {target.num_vector_registers} vector registers")
print(f"caches: L1 {target.l1_bytes >> 10} KiB, L2 {target.l2_bytes >> 10} KiB, L3 {target.l3_bytes >> 20} MiB")

# %% [markdown]
# ## What we compute
#
# `tc.te` is a small language for tensors: say what each element of the result is. `reduce("sum", ...)` gives every element $(i, j)$
# the sum over $k$ of the last argument.
#
# What comes out is a `PrimFunc`, a function made of loops. It is the *definition* of the product; everything that follows changes the
# loops and never what is computed. Look at the block: `vi` and `vj` are spatial axes (their points are independent), `vri` is a
# reduction axis (its points update the same element).

# %%
N = 512
A = placeholder((N, N), f32, "A")
B = placeholder((N, N), f32, "B")
C = reduce("sum", (N, N), (N,), lambda i, j, k: A[i, k] * B[k, j], "C")
matmul = create_prim_func("matmul", inputs=(A, B), outputs=(C,))
FLOPS = 2 * N**3

show(print_ir(matmul))

# %% [markdown]
# ## How fast can it be?
#
# Before making anything fast, find out what fast means. A core executes a fixed number of vector *fused multiply-adds* (FMA) per cycle,
# each `lanes` multiplications and `lanes` additions. `fma_limit` is a loop of nothing but those, all operands in registers: no
# product of matrices on this core can be faster. It is a program like any other, so it can take turns with what we want to measure.
#
# **How we measure.** Other programs, interrupts and changes of the clock make a call longer, never shorter. So we take the *shortest*
# of many calls, of the kernel and of the limit in turns, and quote the kernel's speed as a share of the limit. A share hardly
# changes when the machine is slow today.

# %%
peak = fma_limit(target)
patience = 0.02 if QUICK else 1.0
plan = Plan(
    slot_seconds=0.002 if QUICK else 0.01, settle_seconds=0.001, budget_seconds=patience,
    min_rounds=2 if QUICK else 3, max_rounds=2 if QUICK else 40,
)  # fmt: skip
alone = time_interleaved({"peak": peak.step}, dataclasses.replace(plan, min_rounds=3))
PEAK = peak.flops / alone.shortest("peak") / 1e9
print(f"one core does {PEAK:.0f} GFLOP/s at most; {FLOPS / 1e6:.0f} MFLOP take {FLOPS / PEAK / 1e6:.2f} ms at least")


# %% [markdown]
# From loops to a call: `finish_loops` removes the blocks and simplifies, `emit_prim_func` writes LLVM IR, `compile_object` and `link`
# make machine code. The rest is bookkeeping. All kernels work on the same memory, one large piece of it as in the runtime's arena, so
# that none has better addresses than another.
#
# `measure` never trusts a kernel: it compares the result with numpy's before it starts the clock.

# %%
ROOM = np.empty(32 << 20, np.uint8)
ROOM[:] = 0  # now every page is there


def carve(shapes):
    """float32 arrays of these shapes, one behind the other, at the beginning of ROOM."""
    start, arrays = -ROOM.ctypes.data % (2 << 20), []
    for shape in shapes:
        size = 4 * int(np.prod(shape))
        arrays.append(ROOM[start : start + size].view(np.float32).reshape(shape))
        start += -(-size // 64) * 64
    return arrays


rng = np.random.default_rng(0)
a, b, c = carve([(N, N)] * 3)
a[...], b[...] = rng.standard_normal((2, N, N), np.float32)
expected = a @ b
get_pool().start(machine.cores)


def build(func, threads=1):
    """Machine code of a scheduled function, as a call that reads `a` and `b` and writes `c`."""
    final = finish_loops(func, threads)
    library = link([compile_object(emit_prim_func(final, "kernel", target.features).ir_text, target)])
    arrays = carve([[dim.value for dim in buffer.shape] for buffer in final.buffers])  # a, b, c, scratch memory
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays), ctypes.c_int64)(library.address("kernel"))
    pointers = [array.ctypes.data for array in arrays]

    def call(library=library):  # the code lives as long as its library
        kernel(*pointers, threads)

    return call


def race(calls, seconds=patience):
    """GFLOP/s of each call. All take turns with each other and with the limit; the shortest call of each counts."""
    timings = time_interleaved({**calls, "limit": peak.step}, dataclasses.replace(plan, budget_seconds=seconds * len(calls)))
    shares = {name: FLOPS / timings.shortest(name) / (peak.flops / timings.shortest("limit")) for name in calls}
    return {name: share * PEAK for name, share in shares.items()}


programs, calls, speeds = {}, {}, {}  # by name: the scheduled function, a call of it, its GFLOP/s


def measure(name, func):
    """Check, time and remember a schedule."""
    programs[name], calls[name] = func, build(func)
    c[...] = np.nan  # nothing is left of the kernel before
    calls[name]()
    error = np.abs(c - expected).max()
    assert error < 1e-5 * np.abs(expected).max() * np.sqrt(N), f"{name} computes something else: off by {error}"
    before = next(reversed(speeds.values()), None)
    speeds.update(race({name: calls[name]}))
    compared = "" if before is None else f", {speeds[name] / before:.2f} times the step before"
    print(f"{name}: {speeds[name]:.1f} GFLOP/s, {speeds[name] / PEAK:.1%} of the limit{compared}")


measure("as defined", matmul)

# %% [markdown]
# That is what the definition costs when it is compiled as it stands. Why so slow? Two reasons, both visible in the loop nest:
#
# 1. **A chain.** The innermost loop adds to the *same* element `C[i, j]` again and again. Each addition needs the result of the one
#    before, and has to wait for it; the other units of the core have nothing to do meanwhile.
# 2. **One element at a time.** A vector instruction would do `lanes` of them at the same price.
#
# ## Step 1: reorder
#
# `Schedule` holds the function and the steps that were applied to it. Put the loop over columns `j` innermost: now neighbouring
# iterations update *different* elements, which lie side by side in memory, as do the elements of B they read.
#
# Every step is checked. A step that could change the result, or makes no sense, is refused with a reason, and changes nothing.

# %%
s = Schedule(matmul)
print("loops:", s.loops_of("C"))
s.reorder("i", "ri", "j")
show(print_ir(s.func), first=3)
measure("reordered", s.func)

try:
    s.vectorize("ri")
except ScheduleError as error:
    print("\nrefused:", error)

# %% [markdown]
# The refused step asked for a vector of terms of one and the same sum. All lanes would write to one element. (There is a legal way to
# do it, `rfactor`, which makes a partial sum for each lane; for a product of matrices it is not needed.)
#
# ## Step 2: vectorize
#
# `j` has independent iterations: cut `lanes` of them off (`split`) and make them one vector instruction.

# %%
outer, inner = s.split("j", lanes)
s.vectorize(inner)
show(print_ir(s.func), first=3)
measure("vectorized", s.func)


# %% [markdown]
# Much better, and far from the limit. To see why, count what the processor is asked to do. The function below finds the innermost
# loop in the assembly and counts its instructions. Those with a memory operand, in parentheses, load or store; a multiply-add can
# load one of its factors itself.

# %%
def innermost_loop(func):
    """The instructions of the loop with the most multiply-adds, of those that contain no other loop."""
    assembly = disassemble(emit_prim_func(finish_loops(func, 1), "kernel", target.features).ir_text, target).assembly
    lines = assembly.splitlines()
    labels = {line[:-1]: number for number, line in enumerate(lines) if line.startswith(".LBB")}
    loops = []
    for number, line in enumerate(lines):
        words = line.split()
        if len(words) == 2 and words[0].startswith("j") and labels.get(words[1], number) < number:
            body = lines[labels[words[1]] : number + 1]
            loops.append([each for each in body if each.startswith("\t") and not each.startswith("\t.")])
    return max(loops, key=lambda loop: (sum("fmadd" in each for each in loop), -len(loop)))


def count_instructions(func):
    loop = innermost_loop(func)
    multiply_adds = sum("fmadd" in each for each in loop)
    stores = sum(each.startswith("\tvmov") and each.endswith(")") for each in loop)
    loads = sum(each.startswith("\tv") and "(" in each for each in loop) - stores
    print(f"innermost loop: {multiply_adds} multiply-adds, {loads} loads, {stores} stores, {len(loop)} instructions in all")
    print(f"for each multiply-add: {(loads + stores) / multiply_adds:.2f} loads and stores")


count_instructions(s.func)
show("\n".join(innermost_loop(s.func)))

# %% [markdown]
# For every multiply-add a vector of `C` is loaded and stored, and one of `B` is loaded. A core has two or three ports to memory and
# needs all of them for this; the multipliers wait. The cure is **reuse**: keep sums in registers for as long as terms are added to
# them, and use each loaded vector of `B` several times before it is dropped.
#
# ## Step 3: a tile of the result
#
# Suppose a tile of `rows` rows by `vectors` vectors of columns lives in registers. One step of the sum, for one `k`, then needs
#
# - `vectors` loads of `B` and `rows` loads of `A` (one number, copied to all lanes: a *broadcast*),
# - `rows * vectors` multiply-adds.
#
# Large tiles need few loads per multiply-add. And all sums of the tile are independent, so nobody waits for a chain: an FMA takes about 4
# cycles and two can start in each, so at least 8 sums must be under way. But the tile has to fit: `rows * vectors` registers for sums,
# `vectors` for the vectors of `B`, and one for the broadcast.

# %%
print("rows vectors  sums  loads per multiply-add  registers")
for vectors in (1, 2, 4):
    most = (target.num_vector_registers - vectors - 1) // vectors
    for rows in sorted({1, 4, most, most + 2}):
        needed = rows * vectors + vectors + 1
        fits = "" if needed <= target.num_vector_registers else "  too many"
        print(f"{rows:4} {vectors:7} {rows * vectors:5} {(rows + vectors) / (rows * vectors):23.2f} {needed:10}{fits}")

VECTORS = 2
ROWS = (target.num_vector_registers - VECTORS - 1) // VECTORS
COLUMNS = VECTORS * lanes
print(f"\nwe take {ROWS} rows by {VECTORS} vectors, a tile of {ROWS} x {COLUMNS}")

# %% [markdown]
# First the loops, without a word about registers. Both loops over the result are split into tiles and elements of a tile, and the loop
# over `k` moves *between* them: for each tile, for each step of the sum, all elements of the tile. `unroll` writes the small loops
# out, so that every element of the tile has its own instruction.
#
# `decompose_reduction` separates setting the sums to zero from adding to them; before, each step had to ask whether it is the first.
#
# Look at `where`: 512 is no multiple of the number of rows of a tile, so the last tile sticks out and its surplus rows must be masked.

# %%
s = Schedule(matmul)
row_tile, row = s.split("i", ROWS)
column_tile, column = s.split("j", COLUMNS)
vector, lane = s.split(column, lanes)
s.reorder(row_tile, column_tile, "ri", row, vector, lane)
s.vectorize(lane)
s.unroll(vector)
s.unroll(row)
s.decompose_reduction("C", "ri")

show(print_ir(s.func), first=3)
measure("tiled", s.func)
count_instructions(s.func)

# %% [markdown]
# ## Step 4: the tile in registers
#
# Now say where the sums live. We start afresh and think from the result backwards.
#
# - `cache_write` lets the block compute into a new buffer of the scope `register`, and adds a block `C_copy` that copies it to `C`. At
#   first the buffer is as large as the matrix.
# - The loops of the *copy* are tiled.
# - `compute_at` moves the sum into the tile: for each tile, what is needed of the sum is computed right there. The compiler works out
#   that this is one tile, and the buffer shrinks to it.
# - The sum's own loops are put in order as before.

# %%
s = Schedule(matmul)
s.cache_write("C", "register")
rows, columns = s.loops_of("C_copy")
row_tile, row = s.split(rows, ROWS)
column_tile, column = s.split(columns, COLUMNS)
vector, lane = s.split(column, lanes)
s.reorder(row_tile, column_tile, row, vector, lane)
s.vectorize(lane)
s.unroll(vector)
s.unroll(row)
s.compute_at("C", column_tile)

*_, row, column, k = s.loops_of("C")
vector, lane = s.split(column, lanes)
s.reorder(k, row, vector, lane)
s.vectorize(lane)
s.unroll(vector)
s.unroll(row)
s.decompose_reduction("C", k)
s.set_scope("C_register", "register")

show(print_ir(s.func), first=3)
measure("in registers", s.func)
count_instructions(s.func)

# %% [markdown]
# The stores are gone from the innermost loop. (Some compilers would have found this by themselves in the step before, where nothing is in
# the way. We do not rely on it: the schedule says what lives where.)
#
# ## Step 5: no test inside
#
# What remains are tests: is this row still inside of the matrix? They are needed in the last tile only. The annotation `partition` asks for
# two copies of the loop, one for the tiles that are surely full, without tests, and one for the rest. Look at the loops after
# `finish_loops`: the first nest has no `if`, and the second one is the last tile with fewer rows.

# %%
s.annotate_loop(row_tile, "partition", 1)
show(print_ir(finish_loops(s.func)), first=3)
measure("last tile apart", s.func)
count_instructions(s.func)


# %% [markdown]
# ## Step 6: a few steps of the sum at once
#
# A loop has costs of its own: counting, comparing, jumping, and advancing addresses. Two steps of the sum per iteration halve them.
#
# From here on we have a schedule with parameters, so let us write it as a function. This is all that a schedule is: a program that
# applies primitives, with some numbers left open.

# %%
def schedule_by_hand(rows=ROWS, vectors=VECTORS, steps=2, pack=False):
    s = Schedule(matmul)
    s.cache_write("C", "register")
    all_rows, all_columns = s.loops_of("C_copy")
    row_tile, row = s.split(all_rows, rows)
    column_tile, column = s.split(all_columns, vectors * lanes)
    vector, lane = s.split(column, lanes)
    s.reorder(row_tile, column_tile, row, vector, lane)
    s.vectorize(lane)
    s.unroll(vector)
    s.unroll(row)
    for loop, extent in ((row_tile, rows), (column_tile, vectors * lanes)):
        if N % extent:
            s.annotate_loop(loop, "partition", 1)
    s.compute_at("C", column_tile)

    *_, row, column, k = s.loops_of("C")
    k, step = s.split(k, steps)
    vector, lane = s.split(column, lanes)
    s.reorder(k, step, row, vector, lane)
    s.vectorize(lane)
    for loop in (step, row, vector):
        s.unroll(loop)
    s.decompose_reduction("C", k)
    s.set_scope("C_register", "register")
    if pack:
        width = vectors * lanes
        copy = s.cache_read("C", "B", "global", f"k, j -> j // {width}, k, j % {width}")
        _, lane = s.split(s.loops_of(copy)[-1], lanes)
        s.vectorize(lane)
    return s


measure("two steps at once", schedule_by_hand().func)
count_instructions(schedule_by_hand().func)

# %% [markdown]
# ## Step 7: packing, and whether it pays
#
# A tile reads a narrow strip of `B`: a few vectors from each of its 512 rows. In memory these are far apart, and such strides can cost:
# each piece is on another page, and addresses at a distance of a large power of two compete for the same few places of a
# cache. The classical remedy is to *pack*: copy `B` once into the order in which it will be read, strip after strip. `cache_read` with a
# layout does that. The copy costs $N^2$ loads and stores, once, which is little beside $N^3$ multiply-adds.
#
# Whether it pays depends on the caches. Here is what it does on this machine:

# %%
packed = schedule_by_hand(pack=True)
show(print_ir(packed.func), first=3, count=9)
measure("B packed", packed.func)

pair = race({name: calls[name] for name in ("two steps at once", "B packed")})
gain = pair["B packed"] / pair["two steps at once"] - 1
verdict = "it pays" if gain > 0.02 else "it costs more than it brings" if gain < -0.02 else "it makes no difference"
print(f"\nin turns with each other, packing B changes the speed by {gain:+.1%}: here {verdict}")
print(f"B has {N * N * 4 >> 10} KiB, the second-level cache {target.l2_bytes >> 10} KiB, the first {target.l1_bytes >> 10} KiB")

# %% [markdown]
# This is the moment to notice what kind of work we are doing. A plausible argument says that packing helps; whether it is true here
# cannot be decided by arguments. An autotuner asks the machine.

# %% [markdown]
# ## What the steps were worth
#
# The steps above were measured one after the other, minutes apart, on a machine that may have been busy with something else. For the
# picture all of them take turns, and so does numpy's product, which comes from a library that experts have tuned by hand.

# %%
product = np.empty((N, N), np.float32)
calls["numpy"] = lambda: np.matmul(a, b, out=product)
by_hand = race(calls)


def draw_speeds(speeds):
    """Bars of GFLOP/s, and the limit of the core."""
    _, axis = plt.subplots(figsize=(8, 0.8 + 0.3 * len(speeds)))
    names = list(speeds)[::-1]
    bars = axis.barh(names, [speeds[name] for name in names], color=["C1" if name == "numpy" else "C0" for name in names])
    axis.bar_label(bars, [f"{speeds[name]:.1f}" for name in names], padding=3)
    axis.axvline(PEAK, color="black", linestyle="--")
    axis.text(PEAK, 1.02, "limit of the core", ha="center", va="bottom", transform=axis.get_xaxis_transform())
    axis.set_xlabel("GFLOP/s, one core")
    axis.set_xlim(0, PEAK * 1.1)
    plt.show()


draw_speeds(by_hand)
best = max((name for name in by_hand if name != "numpy"), key=by_hand.get)
print(f"from {by_hand['as defined']:.1f} to {by_hand[best]:.1f} GFLOP/s: {by_hand[best] / by_hand['as defined']:.0f} times as fast")
print(f"numpy's product: {by_hand['numpy']:.1f} GFLOP/s")

# %% [markdown]
# ## Was the tile well chosen?
#
# We chose it by counting registers. Let us check by measuring many tiles. In the picture each square is one kernel; the frames mark
# tiles whose sums, vectors of `B` and broadcast fit the registers. Look at the edge of the framed region: beyond it some sums have
# to live in memory after all (they are *spilled*), and the speed collapses.

# %%
row_counts = [rows for rows in (1, 2, 4, 6, 8, 10, 12, 14, 16, 20) if rows <= 0.7 * target.num_vector_registers]
vector_counts = (1, 2, 4)
grid = np.full((len(vector_counts), len(row_counts)), np.nan)
for y, vectors in enumerate(vector_counts):
    for x, rows in enumerate(row_counts):
        call = build(schedule_by_hand(rows, vectors).func)
        (grid[y, x],) = race({"tile": call}, patience / 4).values()

figure, axis = plt.subplots(figsize=(8, 2.6))
picture = axis.imshow(grid, aspect="auto", cmap="viridis", vmin=0, vmax=PEAK)
for y, vectors in enumerate(vector_counts):
    for x, rows in enumerate(row_counts):
        axis.text(x, y, f"{grid[y, x]:.0f}", ha="center", va="center", color="white" if grid[y, x] < PEAK * 0.7 else "black")
        if rows * vectors + vectors + 1 <= target.num_vector_registers:
            axis.add_patch(plt.Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, fill=False, edgecolor="red", linewidth=1.5))
axis.set_xticks(range(len(row_counts)), row_counts)
axis.set_yticks(range(len(vector_counts)), vector_counts)
axis.set_xlabel("rows of the tile")
axis.set_ylabel("vectors")
axis.spines[:].set_visible(False)
figure.colorbar(picture, label="GFLOP/s")
plt.show()

# %% [markdown]
# ## The other cores
#
# Tiles are independent of each other, so the rows of tiles can be shared out among cores: one more primitive. The limit is now that
# of all cores together.

# %%
s = schedule_by_hand()
s.parallel(s.loops_of("C_copy")[0])
all_peaks = fma_limit(machine, threads=machine.cores)
together = {"kernel": build(s.func, threads=machine.cores), "peak": all_peaks.step}
timings = time_interleaved(together, plan)
seconds, least = timings.shortest("kernel"), FLOPS / (all_peaks.flops / timings.shortest("peak"))
print(f"{machine.cores} cores: {FLOPS / seconds / 1e9:.0f} GFLOP/s, {least / seconds:.1%} of their limit")

# %% [markdown]
# ## What the compiler does without being asked
#
# `apply_rules` is what `tc.compile` calls for every kernel. A *rule* recognises the kind of computation (here a contraction, a sum
# of products) and makes a schedule from estimates such as the ones above, without measuring anything. Its trace should look
# familiar.

# %%
default = apply_rules(matmul, target)
print("rule:", default.rule)
show(str(default.trace))

calls["the rule's"] = build(default.func)
finalists = race({"by hand": calls[best], "the rule's": calls["the rule's"]})
print("\n" + ", ".join(f"{name}: {speed:.1f} GFLOP/s" for name, speed in finalists.items()))

# %% [markdown]
# # The machine does it
#
# Estimates are made of a few numbers: registers, ports, sizes of caches. What really happens in a core depends on much more, and
# nobody can write it all down. The other way is to *try*, and to learn from what was tried. That takes five parts:
#
# | part | question | in the library |
# |---|---|---|
# | space | which schedules are there? | `tc.autotune.search.space` |
# | measuring | how fast is this one? | `tc.autotune.measure` |
# | features | what does a program look like to a model? | `tc.cost.features` |
# | cost model | which of these will be fast? | `tc.autotune.cost_model.models` |
# | search | which should be measured next? | `tc.autotune.search.policy` |
#
# The method is that of "Learning to Optimize Tensor Programs" (Chen et al., 2018).
#
# ## The space
#
# Our `schedule_by_hand` has parameters. The library's rules have them, too: wherever a rule could go one way or another, it *asks*,
# giving the options that are legal there and the one that its own estimate prefers. Such a question is a **knob**. Untuned, each
# answer is the rule's own; a `Space` gives other answers. So the default is a point of the space like any other.

# %%
space = Space({"default": matmul}, target)
start = space.default()
for knob in start.knobs:
    print(f"{knob.name:22} default {knob.default!s:8} options {knob.options}")
print(f"\nabout {space.size():.1e} points")


# %% [markdown]
# These are not all knobs: which questions come up depends on the answers before (only a schedule that packs an operand asks about
# the bands of the copy, for instance). A space is a program that asks, not a table.
#
# A search moves through it in three ways: a random point (`sample`), a change of one answer or a few (`mutate`), all points at a
# distance of one step (`neighbours`). Not every combination of answers is legal; the schedule then refuses, as it refused us in
# step 1, and we draw again. `refuse_large` turns down programs with so much unrolled code that building them is a waste of time.

# %%
def draw(make, but=""):
    """The first legal candidate of reasonable size that `make` makes; not the program with the key `but`."""
    while True:
        try:
            candidate = make()
        except ScheduleError:
            continue
        if refuse_large(candidate) is None and candidate.key != but:
            return candidate


rng = np.random.default_rng(0)
sampled = draw(lambda: space.sample(rng))
print("a random point:")
for name, value in sampled.point:
    print(f"  {name}: {value}")

mutated = draw(lambda: space.mutate(sampled, rng), but=sampled.key)
before = dict(sampled.point)
print("a mutation of it changes:")
for name, value in mutated.point:
    if before.get(name) != value:
        print(f"  {name}: {before.get(name, 'not asked')} -> {value}")
print(f"the default has {len(space.neighbours(start))} neighbours")

# %% [markdown]
# ## Measuring
#
# Candidates are strange programs. They may be slow, or crash, or never end; none of this may hurt whoever measures. `LocalRunner`
# builds and runs them in other processes: several build side by side, and only one runs at a time. Each candidate is timed in
# turns with a reference kernel (here the default), in short slots; what is reported is the *ratio* of the two, so a machine that slows
# down for a while slows both. Before it is timed, its results are compared with the reference's.
#
# A job names the workload as text and the schedule as a trace. All of it is data, so those processes could as well be on another
# machine.

# %%
workload = Workload.of("matmul 512", matmul, {}, target)
runner = LocalRunner()


def job_of(trace):
    return Job(workload, trace.to_json(), start.trace.to_json())


def measure_candidates(candidates):
    """Ratios to the default (below 1 is faster; inf for failures), and what went wrong."""
    found = runner.measure([job_of(candidate.trace) for candidate in candidates])
    return np.array([m.ratio for m in found]), [m.error for m in found if m.error is not None]


(first,) = runner.measure([job_of(sampled.trace)])
low, high = first.low / first.reference_seconds, first.high / first.reference_seconds
print(f"the random point takes {first.ratio:.2f} times as long as the default (quartiles {low:.2f}, {high:.2f}; {first.rounds} rounds)")

(broken,) = runner.measure([job_of(Trace((Step("vectorize", ("ri",)),)))])
print(f"an illegal schedule: {broken.error}: {broken.detail}")

# %% [markdown]
# How good are schedules drawn at random? All of the space is made of sensible pieces (tiles that fit registers, vectors, unrolled
# loops), so even the bad ones are far better than the definition. In the picture each line is a random candidate.

# %%
NUM_RANDOM = 12 if QUICK else 160
randoms = list({c.key: c for c in (draw(lambda: space.sample(rng)) for _ in range(NUM_RANDOM))}.values())
begin = time.perf_counter()
ratios, errors = measure_candidates(randoms)
each_ms = (time.perf_counter() - begin) / len(randoms) * 1e3
print(f"{len(randoms)} candidates built and measured, {each_ms:.0f} ms each; failed: {len(errors)}")

DEFAULT = finalists["the rule's"]  # GFLOP/s; a candidate's speed is this over its ratio
print(f"median {DEFAULT / np.median(ratios):.0f}, best {DEFAULT / ratios.min():.0f} GFLOP/s, the default {DEFAULT:.0f}")
print(f"{np.mean(ratios < 1):.0%} are faster than the default")

figure, axis = plt.subplots(figsize=(8, 1.6))
axis.vlines(DEFAULT / ratios, 0, 1, color="C0", alpha=0.4)
axis.axvline(DEFAULT, color="C3", label="default")
axis.axvline(PEAK, color="black", linestyle="--", label="limit of the core")
axis.set_xlim(0, PEAK * 1.05)
axis.set_yticks([])
axis.set_xlabel("GFLOP/s of random schedules")
axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
plt.show()

# %% [markdown]
# ## Features
#
# A model that predicts speed needs numbers to predict from. The answers of the knobs would be a poor choice: "rows = 6" means one
# thing in this kernel and another in a convolution. So features are read off the *program*, whatever made it: how long are its loops, how
# many vectors are loaded per operation, how much of each cache does a loop touch, how full are the registers?
#
# You have met some of them. Here they are for the programs that we scheduled by hand. Follow a line from left to right and compare
# with the reasons that we gave at each step.

# %%
table = {name: Program(programs[name], target, {}) for name in ("as defined", "vectorized", "tiled", "in registers", "two steps at once")}
columns = [
    "main: log lanes", "main: accumulators / registers", "main: vector loads / operation", "main: broadcasts / operation",
    "main: stores / operation", "share under checks", "cycles / least",
]  # fmt: skip
print(f"{len(FEATURE_NAMES)} features, among them:\n")
print(f"{'':32}" + "".join(f"{name:>19}" for name in table))
for column in columns:
    row = [program.features[FEATURE_NAMES.index(column)] for program in table.values()]
    print(f"{column:32}" + "".join(f"{value:19.2f}" for value in row))

begin = time.perf_counter()
features = np.stack([Program(candidate.func, target, {}).features for candidate in randoms])
looking_ms = (time.perf_counter() - begin) / len(randoms) * 1e3
print(f"\nlooking at a candidate takes {looking_ms:.1f} ms, measuring one {each_ms:.0f} ms")

# %% [markdown]
# `cycles / least` is an estimate by itself, a logarithm of base 2: by how much the program misses the least time that its arithmetic
# could take, worked out from all the other counts. It is what an engineer would put down on paper. The last line says why a
# model is worth having: looking at a program is so much cheaper than running it.
#
# ## Cost models
#
# How well can we tell fast programs from slow ones without running them? Three models:
#
# - `RandomCost` knows nothing. It puts a pair of programs in the right order half of the time.
# - `AnalyticCost` is the estimate just mentioned. It has never seen a measurement.
# - `RankCost` learns. It corrects the estimate by boosted decision trees, which are fitted to *pairs* of programs: to a search, only
#   their order matters.
#
# The learned one gets two thirds of the random candidates to learn from. All are judged by the other third, which it has not seen.

# %%
split = 2 * len(randoms) // 3
known = Measured("matmul", features[:split], ratios[:split])
unseen = Measured("matmul", features[split:], ratios[split:])

models = {"random": RandomCost(np.random.default_rng(0)), "analytic": AnalyticCost(), "learned": RankCost(seed=0)}
for name, model in models.items():
    model.fit([known])
    print(f"{name:9} {model.report([unseen])}")

figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True)
for axis, name in zip(axes, ("analytic", "learned")):
    mean, _ = models[name].predict_rows(unseen.features)
    axis.scatter(mean - mean.min(), DEFAULT / unseen.seconds, s=16)
    axis.set_xlabel("predicted: log2 of time, over the best")
    axis.set_title(f"{name}: {models[name].report([unseen]).rank_accuracy:.0%} of pairs in order")
axes[0].set_ylabel("measured GFLOP/s")
plt.show()

# %% [markdown]
# In a perfect picture all points lie on one falling curve. What a search needs most is the upper left corner: are the programs that
# the model likes best among the fastest?
#
# What did the trees look at? The importance of a feature is its part of all that the trees gained by asking for it. They start
# from the analytic estimate, so this is what the estimate does *not* know well enough.

# %%
importance = models["learned"].importance()[:12]
figure, axis = plt.subplots(figsize=(7, 3))
axis.barh([name for name, _ in importance][::-1], [gain for _, gain in importance][::-1])
axis.set_xlabel("part of the gain")
plt.show()


# %% [markdown]
# ## Search
#
# Now put the parts together. `ModelSearch` proposes batches. Chains of mutations move through the space towards what the model
# likes (simulated annealing); of everything they meet a batch is chosen that is good *and* diverse, with some random candidates among
# them: a model that is never asked about anything new learns nothing new. The batch is measured, and the model is fitted
# again. `RandomSearch` just draws.
#
# A `Learner` is the little glue between search and model: it predicts candidates, and learns from measured ones.
#
# Normally a search measures the default first and goes on from there. To see it work we take this head start away: in our space, what
# is called the default is a random point, the same for both searches. Nor has the model seen a measurement at the start;
# then `RankCost` is the analytic estimate alone.

# %%
class Learner:
    """A cost model of the candidates of one task."""

    def __init__(self, seed):
        self.cost, self.rows, self.ratios = RankCost(seed), [], []

    def features(self, candidates):
        return np.stack([Program(candidate.func, target, {}).features for candidate in candidates])

    def predict(self, candidates):
        return self.cost.predict_rows(self.features(candidates))

    def observe(self, candidates, ratios):
        self.rows.append(self.features(candidates))
        self.ratios.append(ratios)
        self.cost.fit([Measured("matmul", np.concatenate(self.rows), np.concatenate(self.ratios))])


class WithoutHeadStart(Space):
    """The same space, but a random point in the place of the default."""

    def __init__(self, seed):
        super().__init__({"default": matmul}, target)
        self.seed = seed

    def default(self):
        rng = np.random.default_rng(self.seed)
        return draw(lambda: self.sample(rng))


BATCH = 4 if QUICK else 8
TRIALS = 8 if QUICK else 64
SEEDS = range(1 if QUICK else 3)


def search(policy):
    """Measure TRIALS candidates that the policy proposes; their ratios in order, and the candidates."""
    ratios, candidates = np.zeros(0), []
    while len(ratios) < TRIALS:
        batch = policy.propose(BATCH)
        found, _ = measure_candidates(batch)
        policy.observe(batch, found)
        ratios, candidates = np.append(ratios, found), candidates + batch
    return ratios, candidates


runs = {"random": [], "guided by the model": []}
for seed in SEEDS:
    cold = WithoutHeadStart(seed)
    policies = {
        "random": RandomSearch(cold, np.random.default_rng(seed), refuse_large),
        "guided by the model": ModelSearch(cold, Learner(seed), np.random.default_rng(seed), limits=refuse_large),
    }
    for name, policy in policies.items():
        begin = time.perf_counter()
        ratios, candidates = search(policy)
        runs[name].append((ratios, candidates))
        print(f"seed {seed}, {name}: {DEFAULT / ratios.min():.0f} GFLOP/s after {TRIALS} trials, {time.perf_counter() - begin:.0f} s")

# %%
figure, axis = plt.subplots(figsize=(8, 3.6))
for number, (name, found) in enumerate(runs.items()):
    curves = DEFAULT / np.minimum.accumulate([ratios for ratios, _ in found], axis=1)
    for curve in curves:
        axis.step(range(1, TRIALS + 1), curve, where="post", color=f"C{number}", alpha=0.35, linewidth=1)
    axis.step(range(1, TRIALS + 1), np.median(curves, axis=0), where="post", color=f"C{number}", linewidth=2.5, label=name)
axis.axhline(PEAK, color="black", linestyle="--", label="limit of the core")
axis.axhline(DEFAULT, color="C3", linestyle=":", label="default")
axis.axhline(finalists["by hand"], color="C2", linestyle="-.", label="by hand")
axis.set_ylim(0, PEAK * 1.05)
axis.set_xlabel("candidates measured")
axis.set_ylabel("best so far, GFLOP/s")
axis.legend(loc="lower right", ncols=2)
plt.show()

best_ratio = min(ratios.min() for found in runs.values() for ratios, _ in found)
for name, found in runs.items():
    places = [np.flatnonzero(ratios <= best_ratio / 0.95) for ratios, _ in found]
    needed = [str(place[0] + 1) if len(place) else f"more than {TRIALS}" for place in places]
    print(f"{name}: trials until 95% of the best of all runs: {', '.join(needed)}")

# %% [markdown]
# Each thin line is one run, the thick ones are medians. Both searches of a run start from the same random schedule.
#
# The other thing to look at is what a search *proposes* as time goes by. Random candidates are as good in the end as in the
# beginning. Those of the model should move up, apart from the ones that are tried in order to learn. Compare the first batches,
# too: there the model knows nothing but its estimate.

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 2.8), sharey=True)
for axis, (name, found) in zip(axes, runs.items()):
    for number, (ratios, _) in enumerate(found):
        axis.scatter(range(1, TRIALS + 1), DEFAULT / ratios, s=8, color=f"C{number}")
    axis.axhline(DEFAULT, color="C3", linestyle=":")
    axis.set_title(name)
    axis.set_xlabel("candidate number")
axes[0].set_ylabel("GFLOP/s")
axes[0].set_ylim(0, PEAK * 1.05)
plt.show()

for name, found in runs.items():
    proposed = DEFAULT / np.array([ratios for ratios, _ in found])
    early, later = np.median(proposed[:, :BATCH]), np.median(proposed[:, BATCH:])
    print(f"{name}: median of the first batches {early:.0f}, of all later ones {later:.0f} GFLOP/s")

# %% [markdown]
# ## Is the winner really faster?
#
# The best of many noisy measurements is partly the luckiest one. So a winner is measured again, for longer, before it is believed,
# and its results are checked against a reference that has nothing to do with schedules: numpy's product. Only then would the
# library keep it.

# %%
every = [(ratio, candidate) for found in runs.values() for ratios, candidates in found for ratio, candidate in zip(ratios, candidates)]
lucky, winner = min(every, key=lambda pair: pair[0])
job = dataclasses.replace(job_of(winner.trace), effort=6.0)
(again,) = runner.measure([job])
problem = runner.check(job, [a, b], [expected])
verdict = "faster" if again.ratio < 0.98 else "no faster"
print(f"in the search: {1 / lucky:.3f} times as fast as the default; again, for longer: {1 / again.ratio:.3f} times, so {verdict}")
print("results:", problem or "right")
assert problem is None

default_point = dict(start.point)
print("\nwhat it does differently:")
for name, value in winner.point:
    if default_point.get(name) != value:
        print(f"  {name}: {value} instead of {default_point[name]}" if name in default_point else f"  {name}: {value}")
runner.close()

# %%
calls["found by search"] = build(winner.func)
last = race({"as defined": calls["as defined"], "numpy": calls["numpy"], "by hand": calls[best],
             "the rule's": calls["the rule's"], "found by search": calls["found by search"]})  # fmt: skip
draw_speeds(last)
print(f"found by search: {last['found by search'] / PEAK:.1%} of the limit, "
      f"{last['found by search'] / last['by hand']:.2f} times what we did by hand")  # fmt: skip

# %% [markdown]
# And here is the loop nest of the winner. You know every word of it by now.

# %%
show(print_ir(winner.func), first=3)

# %% [markdown]
# ## From here to a tuned model
#
# `tc tune model.onnx --budget 10m` does this for all kernels of a model, and adds what one kernel alone does not need:
#
# - equal kernels are tuned once, and time goes where it is expected to save the most milliseconds per second of tuning;
# - what was learned from one kernel helps with the next: they share one model, and features that are relative to the machine and to
#   the work make this possible;
# - all measurements are kept in a database, so that tuning can be stopped and resumed, and its results are used when a model is
#   compiled: `tc.compile("model.onnx", tune="records.db")`.
#
# ## Try it yourself
#
# - Make `schedule_by_hand` beat the default. The winner's trace may give you an idea. Does splitting `k` help when `N` is 2048?
# - Take another product, 512 x 64 by 64 x 512 say. What changes in the balance of loads and arithmetic, and does the same tile win?
# - Fit `RankCost` to measurements of one shape and report its accuracy on another. How much of what it learned is about the machine?
# - Give the guided search the model that was fitted to the random candidates. How many trials does it save?
