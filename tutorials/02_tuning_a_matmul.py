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

import matplotlib.pyplot as plt
import numpy as np

from tc.codegen.llvm import emit_prim_func
from tc.errors import ScheduleError
from tc.ir.dtype import f32
from tc.ir.printer import print_ir
from tc.kernels import finish_loops
from tc.measure.harness import Plan, time_interleaved
from tc.measure.machine import fma_limit
from tc.runtime.jit import compile_object, disassemble, link
from tc.runtime.module import aligned_constant
from tc.runtime.pool import get_pool
from tc.schedule.rules import apply_rules
from tc.schedule.step import Schedule
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
# of many calls, of the kernel and of the limit in turns, and quote the kernel's speed as a share of the limit. A share means
# the same on a machine that is busy or slow today.

# %%
peak = fma_limit(target)
patience = 0.02 if QUICK else 1.0
plan = Plan(
    slot_seconds=0.002 if QUICK else 0.01, settle_seconds=0.001, budget_seconds=patience,
    min_rounds=1 if QUICK else 3, max_rounds=2 if QUICK else 40,
)  # fmt: skip
alone = time_interleaved({"peak": peak.step}, dataclasses.replace(plan, min_rounds=3))
PEAK = peak.flops / alone.shortest("peak") / 1e9
print(f"one core does {PEAK:.0f} GFLOP/s at most; {FLOPS / 1e6:.0f} MFLOP take {FLOPS / PEAK / 1e6:.2f} ms at least")


# %% [markdown]
# From loops to a call: `finish_loops` removes the blocks and simplifies, `emit_prim_func` writes LLVM IR, `compile_object` and `link` make
# machine code. The rest is bookkeeping: arrays for the kernel to work on, aligned as the runtime aligns them.
#
# `measure` never trusts a kernel: it compares the result with numpy's before it starts the clock.

# %%
rng = np.random.default_rng(0)
a, b = (aligned_constant(rng.standard_normal((N, N), np.float32)) for _ in range(2))
expected = a @ b
get_pool().start(machine.cores)


def build(func, threads=1):
    """Machine code of a scheduled function, as a call on `a` and `b` that returns the result."""
    final = finish_loops(func, threads)
    library = link([compile_object(emit_prim_func(final, "kernel", target.features).ir_text, target)])
    results = [aligned_constant(np.zeros([dim.value for dim in out.shape], out.dtype.numpy)) for out in final.outputs]
    arrays = [a, b, *results]
    address = library.address("kernel")
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays), ctypes.c_int64)(address)
    pointers = [array.ctypes.data for array in arrays]

    def call(keep=(library, arrays)):
        kernel(*pointers, threads)
        return results[0]

    return call


speeds = {}  # name -> GFLOP/s


def measure_call(name, call):
    """Time `call` in turns with the limit; keep and print its speed."""
    timings = time_interleaved({"kernel": call, "peak": peak.step}, plan)
    share = timings.shortest("peak") / peak.flops * FLOPS / timings.shortest("kernel")
    before = next(reversed(speeds.values()), None)
    speeds[name] = share * PEAK
    compared = "" if before is None else f", {speeds[name] / before:.2f} times the step before"
    print(f"{name}: {speeds[name]:.1f} GFLOP/s, {share:.1%} of the limit{compared}")


def measure(name, func):
    call = build(func)
    error = np.abs(call() - expected).max()
    assert error < 1e-5 * np.abs(expected).max() * np.sqrt(N), f"{name} computes something else: off by {error}"
    measure_call(name, call)


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

gain = speeds["B packed"] / speeds["two steps at once"] - 1
verdict = "it pays" if gain > 0.02 else "it costs more than it brings" if gain < -0.02 else "it makes no difference"
print(f"packing B changes the speed by {gain:+.1%}: here {verdict}")
print(f"B has {N * N * 4 >> 10} KiB, the second-level cache {target.l2_bytes >> 10} KiB, the first {target.l1_bytes >> 10} KiB")

# %% [markdown]
# This is the moment to notice what kind of work we are doing. A plausible argument says that packing helps; whether it is true here
# cannot be decided by arguments. An autotuner asks the machine.
#
# ## What the steps were worth

# %%
by_hand = dict(speeds)
best_by_hand = max(by_hand.values())
speeds.clear()
measure_call("numpy (its BLAS library, one thread)", lambda: np.matmul(a, b))
numpy_speed = next(iter(speeds.values()))

figure, axis = plt.subplots(figsize=(8, 3))
bars = axis.barh(list(by_hand)[::-1], list(by_hand.values())[::-1])
axis.bar_label(bars, [f"{speed:.1f}" for speed in list(by_hand.values())[::-1]], padding=3)
axis.axvline(PEAK, color="black", linestyle="--", label="limit of the core")
axis.axvline(numpy_speed, color="C1", linestyle=":", label="numpy's product")
axis.set_xlabel("GFLOP/s, one core")
axis.set_xlim(0, PEAK * 1.15)
axis.legend(loc="lower right")
plt.show()
print(f"from {by_hand['as defined']:.1f} to {best_by_hand:.1f} GFLOP/s: {best_by_hand / by_hand['as defined']:.0f} times as fast")

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
tile_plan = dataclasses.replace(plan, budget_seconds=patience / 5, max_rounds=6)
for y, vectors in enumerate(vector_counts):
    for x, rows in enumerate(row_counts):
        call = build(schedule_by_hand(rows, vectors).func)
        timings = time_interleaved({"kernel": call, "peak": peak.step}, tile_plan)
        grid[y, x] = timings.shortest("peak") / peak.flops * FLOPS / timings.shortest("kernel") * PEAK

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
# ## What the compiler does without being asked
#
# `apply_rules` is what `tc.compile` calls for every kernel. A rule recognises the kind of computation (here a *contraction*, a sum of
# products) and makes a schedule from estimates such as the ones above, without measuring anything. Its trace should look familiar.

# %%
default = apply_rules(matmul, target)
print("rule:", default.rule)
show(str(default.trace))
speeds.clear()
speeds["by hand"] = best_by_hand
measure("the rule's", default.func)
