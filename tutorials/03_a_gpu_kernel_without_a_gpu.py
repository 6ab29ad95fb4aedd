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
# # A GPU kernel without a GPU
#
# A GPU runs thousands of threads at once. Much of what makes a program for it right or wrong, fast or slow, can be found out without
# one: whether threads race, how often each number is fetched, how many threads ask the same bank of memory at the same time, how many
# registers a thread needs. This tutorial takes a product of matrices from one line of arithmetic to tensor cores, on an
# ordinary CPU, and checks every step in ways that a GPU does not offer:
#
# - the **interpreter** runs all threads of a block, remembers who touched what, and complains when two of them touch one element without
#   a barrier in between. A GPU just computes something wrong, some of the time;
# - **OpenCL** runs the same kernels on the CPU. `pip install 'tc[opencl]'` brings such a device; where it is missing, these checks
#   are left out, and say so;
# - **counting** replaces measuring: fetches for each multiplication, wavefronts for each access to shared memory, registers for each
#   thread. None of it needs a device, and none of it is noisy.
#
# What remains for a real GPU is time itself. You will see none here: a time measured on something else would mean nothing.
#
# It helps to have seen tutorial 2, which takes the same product to the limit of a CPU's core. You need not know CUDA.

# %%
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import tc
from tc.check.compare import CompiledKernel, run_kernel
from tc.codegen.amdgpu.resources import wave_resources
from tc.codegen.backends import backend_of, language_of
from tc.codegen.launches import launches_of
from tc.demo import MODEL_PATH, as_model_input, load_heldout
from tc.errors import UserError, VerifyError
from tc.interp import run_prim_func
from tc.ir.arith import evaluate
from tc.ir.bit_layout import layout, row_major
from tc.ir.dtype import f16, f32, i64
from tc.ir.expr import Load, Var, cast
from tc.ir.fragments import mma_fragments
from tc.ir.loop import Barrier, For, LoopKind, Seq, Stmt, Store, walk_statements
from tc.ir.node import children, transform, walk
from tc.ir.printer import print_ir
from tc.ir.shared_memory import BANKS, choose_swizzle, least_wavefronts, least_wavefronts_of, wavefronts, wavefronts_of
from tc.ir.uses import variables
from tc.passes.pipeline import finish_loops
from tc.schedule.rules import apply_rules
from tc.schedule.step import Schedule
from tc.target import Target, occupancy
from tc.te import create_prim_func, placeholder, reduce

os.environ["TC_CACHE_DIR"] = "off"  # tc keeps what it has compiled; here everything is compiled before your eyes
plt.rcParams.update({"figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False, "font.size": 9})


def show(text, first=0, count=None, width=160):
    """Print `count` lines of a text, from line number `first` on; long lines are cut."""
    lines = text.strip("\n").splitlines()
    last = len(lines) if count is None else first + count
    for line in lines[first:last]:
        print(line if len(line) <= width else line[: width - 2] + " …")
    if last < len(lines):
        print(f"… {len(lines) - last} more lines")


target = Target.parse("cuda:sm_80@x86-64-v3")  # an A100, which need not be here
gpu = target.device
try:
    opencl = Target.parse("opencl")
    print(f"OpenCL runs kernels on {opencl.device.product}")
except UserError as error:
    opencl = None
    print(f"what OpenCL would run is left out: {error}")

# %% [markdown]
# ## The machine in one screen
#
# A *launch* starts a grid of **blocks**; each block is a few hundred **threads** that run the same program. A **processor** of the GPU
# (a "streaming multiprocessor") takes whole blocks, as many as fit, and runs their threads in **warps** of 32, which go through
# the program in step.
#
# Memory comes in three kinds, and the whole art is to use the right one:
#
# | | who sees it | how much | what it costs |
# |---|---|---|---|
# | global | everybody | gigabytes | hundreds of cycles, and a bandwidth that all share |
# | shared | the threads of one block | kilobytes per processor | some tens of cycles, if its banks do not get in each other's way |
# | registers (`local`) | one thread | at most 255 numbers | nothing |
#
# The facts of devices are a table in `tc`, taken from the vendors' papers. One ratio of them says what we are up against.

# %%
print(f"{gpu.product}: {gpu.processors} processors, warps of {gpu.warp_size}, blocks of at most {gpu.max_threads_per_block} threads")
print(f"a processor has {gpu.shared_bytes_per_processor >> 10} KiB of shared memory and {gpu.registers_per_processor} registers")
print(f"{gpu.f32_flops_per_s / 1e12:.1f} TFLOP/s in f32, {gpu.memory_bytes_per_s / 1e12:.2f} TB/s from global memory")
RIDGE = gpu.f32_flops_per_s / gpu.memory_bytes_per_s
print(f"so for each byte that it fetches, a kernel must compute {RIDGE:.0f} operations to keep the arithmetic busy")

# %% [markdown]
# ## What we compute
#
# The definition is the one of tutorial 2: each element of `C` is a sum over `k`. It says nothing about threads. Everything below changes
# where and when the terms are added, never what is added.

# %%
N = 64  # small enough to interpret every thread


def definition(n=N, dtype=f32):
    """A product of two n x n matrices, its sums in f32."""
    A, B = placeholder((n, n), dtype, "A"), placeholder((n, n), dtype, "B")
    C = reduce("sum", (n, n), (n,), lambda i, j, k: cast(A[i, k], f32) * cast(B[k, j], f32), "C")
    return create_prim_func("matmul", inputs=(A, B), outputs=(C,))


show(print_ir(definition()))

# %% [markdown]
# ## Step 1: a thread for each result
#
# The loops over `i` and `j` have independent iterations, so threads may share them out. Cut each in blocks of 16 (`split`) and `bind`
# the four loops to the axes of the launch: 4 x 4 blocks of 16 x 16 threads.
#
# `cache_write` lets a thread keep its sum in a register (scope `local`) and store it once; `compute_at` says that the sum is computed
# inside of the thread that stores it. A bound loop still *means* a loop: its iterations may run at the same time, and after it all of
# them are done. That is why every step can be checked like a step on a CPU.

# %%
AXES = ("block.y", "block.x", "thread.y", "thread.x")


def naive(n=N, size=16, axes=AXES):
    s = Schedule(definition(n))
    s.cache_write("C", "local")
    i, j = s.loops_of("C_copy")
    block_i, thread_i = s.split(i, size)
    block_j, thread_j = s.split(j, size)
    s.reorder(block_i, block_j, thread_i, thread_j)
    for loop, axis in zip((block_i, block_j, thread_i, thread_j), axes):
        s.bind(loop, axis)
    s.compute_at("C", thread_j)
    s.decompose_reduction("C", s.loops_of("C")[-1])  # zero first, then the loop that adds
    return s.func


show(print_ir(naive()))


# %% [markdown]
# The passes for devices turn this into the program of *one thread*, from which code is generated; on the way they write out short loops
# and parts of longer ones (`unrolled`). We keep two ways to run it:
# `interpret` is slow and sees everything; `run_opencl` generates OpenCL-C and lets the CPU's OpenCL driver compile it. `check` compares
# both with numpy.

# %%
def finished(func, target=target):
    """The program of one thread."""
    return finish_loops(func, calls=backend_of(target).finish, features=target.device.features)


def run_opencl(program, arrays):
    """The results of a finished program on the OpenCL device."""
    backend = backend_of(opencl)
    library = backend.load(backend.make([backend.emit(program, "kernel", opencl)], True, opencl), opencl)
    return run_kernel(CompiledKernel(program.name, program, library.address("kernel"), library.device), arrays, [], 1)


rng = np.random.default_rng(0)
a, b = rng.standard_normal((2, N, N), np.float32)
steps = {}  # by name: the program of one thread


def check(name, func):
    """Finish, run, compare and remember a schedule."""
    program = steps[name] = finished(func)
    results = {"interpreter": run_prim_func(program, [a, b])[0]}
    if opencl is not None:
        results["OpenCL"] = run_opencl(program, [a, b])[0]
    for who, result in results.items():
        error = np.abs(result - a @ b).max()
        print(f"{name}, by {who}: differs from numpy by {error:.1e} at most")
        assert error < 1e-4


check("naive", naive())
show(print_ir(steps["naive"]), first=3)

# %% [markdown]
# And this is the text that the OpenCL driver got. The loops over blocks and threads are gone: each thread asks for its numbers.

# %%
show(language_of("opencl", Target.parse("opencl:generic")).write(steps["naive"], "matmul", target), first=6)


# %% [markdown]
# ### Counting fetches
#
# How good is it? Count what a thread asks of each kind of memory, for each multiply-add that it does. The function walks over the
# statements of the thread's program and multiplies by the loops around; a vectorized loop is one access.

# %%
def accesses(stmt, times=1, lanes=1):
    """Of one thread: each load and store below a statement, how often it happens, and how many neighbours it takes at once."""
    if isinstance(stmt, For) and not stmt.thread:
        extent = evaluate(stmt.extent, {})
        times, lanes = (times, extent) if stmt.kind is LoopKind.VECTORIZED else (times * extent, lanes)
    if isinstance(stmt, Store):
        yield stmt, times, lanes
    for child in children(stmt):
        if isinstance(child, Stmt):
            yield from accesses(child, times, lanes)
        else:
            yield from ((node, times, lanes) for node in walk(child) if isinstance(node, Load))


def per_multiply_add(program, scope):
    """Loads from a kind of memory, for each multiply-add of a thread."""
    (launch,) = launches_of(program)
    blocks = np.prod([evaluate(size, {}) for size in launch.grid])
    multiply_adds = N**3 / blocks / np.prod(launch.threads)
    found = [times for node, times, _ in accesses(program.body) if isinstance(node, Load) and node.buffer.scope == scope]
    return sum(found) / multiply_adds


asked = per_multiply_add(steps["naive"], "global")
print(f"{asked:.0f} loads from global memory for each multiply-add: {2 / (4 * asked):.2f} operations for each byte, {RIDGE:.0f} are needed")


# %% [markdown]
# Caches will soften this, and should not have to: the same column of `B` is asked for by every row of the result.
#
# ### Which thread sits where
#
# Global memory is served in *sectors* of 32 bytes. The 32 threads of a warp ask at the same moment, so what counts is how many different
# sectors they want together. Threads are numbered along `x` first: neighbours in `thread.x` sit in one warp. In `naive`, `thread.x` runs
# along a row of `C`. What if it ran along a column instead?

# %%
def of_warp(program, access):
    """The places, counted in elements, that the lanes of the first warp access when all other loops stand at 0."""
    (launch,) = launches_of(program)
    bound = {loop.thread: loop.var for loop in walk_statements(launch.body) if isinstance(loop, For) and loop.thread}
    columns = launch.threads[0]
    places = []
    for lane in range(min(gpu.warp_size, int(np.prod(launch.threads)))):
        values = dict.fromkeys(set().union(*map(variables, access.indices)), 0)
        values |= {bound["thread.x"]: lane % columns, bound["thread.y"]: lane // columns}
        place = 0
        for index, size in zip(access.indices, access.buffer.shape):
            place = place * size.value + evaluate(index, values)
        places.append(place)
    return places


turned = finished(naive(axes=("block.x", "block.y", "thread.x", "thread.y")))
for name, program in (("thread.x along rows of C", steps["naive"]), ("thread.x along columns of C", turned)):
    sectors = {
        node.buffer.name: len({4 * place // 32 for place in of_warp(program, node)})
        for node, _, _ in accesses(program.body)
        if node.buffer.scope == "global"
    }
    print(f"{name}: sectors for each access of a warp: {sectors}")

# %% [markdown]
# The same arithmetic in the same number of threads, and a warp asks for several times as many sectors. Neighbouring threads should want
# neighbouring elements: that is called *coalescing*, and it costs one line in the schedule to have or to lose.
#
# ## Step 2: tiles in shared memory
#
# A block computes 16 x 16 elements of `C`. For 16 steps of the sum it needs a 16 x 16 tile of `A` and one of `B`; each element is
# used 16 times. So let the block's threads fetch both tiles to shared memory together, each thread one element of each, and read them
# from there.
#
# In the schedule: cut the sum in stages of 16; `cache_read` inserts a copy of an operand, `compute_at` moves it into the loop over stages
# (the compiler finds out that only a tile is needed there), and the copy's loops are bound to the same threads.

# %%
def tiled(n=N, size=16):
    s = Schedule(definition(n))
    s.cache_write("C", "local")
    i, j = s.loops_of("C_copy")
    block_i, thread_i = s.split(i, size)
    block_j, thread_j = s.split(j, size)
    s.reorder(block_i, block_j, thread_i, thread_j)
    for loop, axis in zip((block_i, block_j, thread_i, thread_j), AXES):
        s.bind(loop, axis)

    s.compute_at("C", block_j)  # the sum has threads of its own
    *_, thread_i, thread_j, k = s.loops_of("C")
    stage, k = s.split(k, size)
    s.reorder(stage, thread_i, thread_j, k)
    s.bind(thread_i, "thread.y")
    s.bind(thread_j, "thread.x")
    s.decompose_reduction("C", stage)

    for operand in ("A", "B"):
        copy = s.cache_read("C", operand, "shared")
        s.compute_at(copy, stage)
        *_, row, column = s.loops_of(copy)
        s.bind(row, "thread.y")
        s.bind(column, "thread.x")
    return s.func


check("tiled", tiled())
show(print_ir(steps["tiled"]), first=3)

# %% [markdown]
# The schedule did not mention barriers; the passes put them where they are needed. `barrier()` stops every thread until all threads of the
# block are there. Two are needed in each stage:
#
# - after the copies: a thread reads what *other* threads have fetched;
# - before the copies: in the next stage they overwrite what slower threads may still be reading.
#
# ### Dropping a barrier
#
# Barriers are where programs for GPUs go wrong, because a missing one often does no harm: on the day of the test, the other threads
# happened to be fast enough. Let us take one away and see who notices.

# %%
def without_barrier(program, number):
    """The program without one of its barriers."""
    barriers = [node for node in walk_statements(program.body) if isinstance(node, Barrier)]
    return transform(program, lambda node: Seq(()) if node is barriers[number] else None)


def try_broken(program):
    try:
        run_prim_func(program, [a, b])
        print("interpreter: no complaint")
    except VerifyError as error:
        print("interpreter:", error)
    if opencl is not None:
        error = np.abs(run_opencl(program, [a, b])[0] - a @ b).max()
        print(f"OpenCL: {'the right result' if error < 1e-4 else f'a result that is off by {error:.1f}'}")


for number, where in enumerate(("before the copies", "after the copies")):
    print(f"without the barrier {where}")
    try_broken(without_barrier(steps["tiled"], number))
    print()

# %% [markdown]
# The interpreter names the element, both threads and both statements. It does not depend on luck: between two barriers it remembers for
# every element of shared and global memory who wrote and who read it, in whatever order the threads ran.
#
# Compare what OpenCL's device on the CPU said, if there is one here: it runs the threads of a block one after the other from barrier to
# barrier, and an order that is always the same hides some mistakes perfectly. A GPU hides them too, until it does not.
#
# The interpreter also notices a barrier that only some of the threads reach, a thread that reads shared memory to which nothing was
# stored, and an index outside of an array; before anything runs, the verifier refuses what it can prove to be wrong.
#
# ## Step 3: tiles in registers
#
# How far did shared memory take us?

# %%
for name, program in steps.items():
    counts = {scope: per_multiply_add(program, scope) for scope in ("global", "shared")}
    print(f"{name}: loads for each multiply-add: {counts['global']:.3f} global, {counts['shared']:.3f} shared")
print(f"in a cycle, a processor starts {gpu.f32_fma_per_cycle:.0f} multiply-adds, and gets {BANKS} words from shared memory")

# %% [markdown]
# Global memory is asked 16 times less, as promised. But now every multiply-add waits for two loads from *shared* memory, which cannot
# keep up with the arithmetic either. The cure is the one of tutorial 2: a tile in registers. A thread that computes 4 x 4 elements loads
# 4 + 4 numbers for 16 multiply-adds.
#
# A block of 8 x 8 threads then makes a tile of 32 x 32. Fetching is shared out differently now: the elements of a tile are numbered
# (`fuse`) and dealt to the 64 threads, one row of threads after the other.

# %%
TILE, OWN, DEPTH = 32, 4, 8  # of a block, of a thread, terms of a stage


def in_registers(n=N, pad=0):
    s = Schedule(definition(n))
    threads = TILE // OWN
    s.cache_write("C", "local")
    i, j = s.loops_of("C_copy")
    block_i, thread_i, own_i = s.split(i, (None, threads, OWN))
    block_j, thread_j, own_j = s.split(j, (None, threads, OWN))
    s.reorder(block_i, block_j, thread_i, thread_j, own_i, own_j)
    for loop, axis in zip((block_i, block_j, thread_i, thread_j), AXES):
        s.bind(loop, axis)
    s.unroll(own_i)
    s.vectorize(own_j)  # a thread stores four neighbours at once: 16 bytes

    s.compute_at("C", block_j)
    *_, rows, columns, k = s.loops_of("C")
    stage, k = s.split(k, DEPTH)
    thread_i, own_i = s.split(rows, OWN)
    thread_j, own_j = s.split(columns, OWN)
    s.reorder(stage, thread_i, thread_j, k, own_i, own_j)
    s.bind(thread_i, "thread.y")
    s.bind(thread_j, "thread.x")
    s.unroll(own_i)
    s.unroll(own_j)
    s.decompose_reduction("C", stage)

    for operand in ("A", "B"):
        copy = s.cache_read("C", operand, "shared")
        mine = s.cache_read("C", f"{operand}_shared", "local")  # what a thread needs for one k
        s.compute_at(mine, k)
        *_, row, column = s.loops_of(mine)
        s.vectorize(column) if operand == "B" else s.unroll(row)
        s.compute_at(copy, stage)
        *_, row, column = s.loops_of(copy)
        turn, thread_i, thread_j = s.split(s.fuse(row, column), (None, threads, threads))
        s.reorder(thread_i, thread_j, turn)
        s.bind(thread_i, "thread.y")
        s.bind(thread_j, "thread.x")
    if pad:
        s.pad_rows("A_shared", pad)
    return s.func


check("in registers", in_registers())
show(print_ir(steps["in registers"]), first=3)

# %%
counts = {name: [per_multiply_add(program, scope) for scope in ("global", "shared")] for name, program in steps.items()}
figure, axes = plt.subplots(figsize=(6, 2.2))
for k, (scope, color) in enumerate((("global", "#4c72b0"), ("shared", "#dd8452"))):
    heights = [pair[k] for pair in counts.values()]
    bars = axes.bar(np.arange(len(counts)) + 0.4 * k - 0.2, heights, 0.36, label=scope, color=color)
    axes.bar_label(bars, [f"{height:.3g}" if height else "" for height in heights])
axes.set_xticks(range(len(counts)), counts)
axes.set_ylabel("loads per multiply-add")
axes.legend(frameon=False)
plt.show()


# %% [markdown]
# ## Step 4: banks
#
# Shared memory consists of 32 banks, 4 bytes wide; word `w` lies in bank `w % 32`. In one cycle each bank gives one word, to all lanes that
# want it. If the lanes of a warp want *different* words of one bank, they are served one after the other. Each round is called a
# *wavefront*, and an access that needs more than it must has bank *conflicts*.
#
# Nothing about this needs a GPU. Take an access of the program, work out the address of each lane, and count.

# %%
def count_wavefronts(program):
    for node, _, lanes in accesses(program.body):
        if node.buffer.scope == "shared":
            addresses = [4 * place for place in of_warp(program, node)]
            found, least = wavefronts_of(addresses, 4 * lanes), least_wavefronts_of(addresses, 4 * lanes)
            kind = "store to" if isinstance(node, Store) else "load from"
            width = f", {lanes} elements at once" if lanes > 1 else ""
            print(f"  {kind} {node.buffer.name}{width}: wavefronts: {found}{'' if found == least else f', and {least} would do'}")


for name in ("tiled", "in registers"):
    print(name)
    count_wavefronts(steps[name])

# %% [markdown]
# One access has conflicts. A row of the tile of `A` has 8 elements, and a thread's rows begin 4 rows after those of its neighbour in `y`:
# 32 words apart, which is the same bank. All four rows of threads in the warp queue for it.
#
# The oldest remedy is **padding**: make the rows longer by some elements that nobody uses, so that the distance is no multiple of 32. One
# word is enough here.

# %%
check("padded", in_registers(pad=1))
count_wavefronts(steps["padded"])

# %% [markdown]
# The loads, which happen in each of the 8 steps of a stage, have no conflicts any more. The price is a conflict in the stores, which happen
# once in a stage.
#
# The other remedy is a **swizzle**: rows keep their length, and the elements of each row trade places according to the number of the
# row. That is what tensor cores want, whose rows must begin at multiples of 16 bytes.
#
# `tc` describes where things are by **linear maps over bits**. A `BitLayout` says to which place each *bit* of an index goes; the image of
# any index is the exclusive or of the images of its bits. Rows and columns, powers of two, swizzles, lanes of a warp: all of these
# are such maps, and questions about them become linear algebra with 0 and 1. Whether an access has conflicts is the rank of a
# matrix, so the answer is a *proof for all addresses* and not a test of some.
#
# Take the tile that tensor cores read: 32 rows of 32 halves, 64 bytes a row. The instruction `ldmatrix` lets each lane name one piece of 8
# halves, 16 bytes: lanes 0 to 15 the left pieces of 16 rows, lanes 16 to 31 the pieces beside them.

# %%
ROWS, COLUMNS = 32, 32
plain = row_major("offset", row=ROWS, column=COLUMNS)
ldmatrix = layout(
    {"row": ROWS, "column": COLUMNS},
    element=[(0, 1), (0, 2), (0, 4)],  # the three bits of an element's number: along the row
    lane=[(1, 0), (2, 0), (4, 0), (8, 0), (0, 8)],  # the five bits of a lane's: four choose the row, one the piece
)
fetch = layout({"row": ROWS, "column": COLUMNS}, element=[(0, 1), (0, 2), (0, 4)], lane=[(0, 8), (0, 16), (1, 0), (2, 0), (4, 0)])
mixed = choose_swizzle(ROWS, COLUMNS, 2, [ldmatrix, fetch])

for name, places in (("row by row", plain), ("swizzled", mixed)):
    for what, access in (("ldmatrix", ldmatrix), ("stores of a fetch", fetch)):
        found, least = wavefronts(access.then(places), 2), least_wavefronts(access.then(places), 2)
        print(f"{name:10} {what:17}: {found:2} wavefronts, {least} at least")

row, column = Var("row", i64), Var("column", i64)
print("\nplace of an element, row by row:", *plain.exprs(row=row, column=column))
print("place of an element, swizzled:  ", *mixed.exprs(row=row, column=column))

# %% [markdown]
# The 32 banks are eight groups of four, and a piece of 16 bytes lies in one of the groups. The picture shows in which. `ldmatrix` is
# served eight lanes at a time: eight rows, one piece of each, outlined below. Row by row they share two groups of banks; swizzled, every
# one has a group of its own.

# %%
figure, panels = plt.subplots(1, 2, figsize=(6, 3.2), sharey=True)
for axes, (name, places) in zip(panels, (("row by row", plain), ("swizzled", mixed))):
    pieces = np.array([[places(row=r, column=8 * c)[0] for c in range(COLUMNS // 8)] for r in range(16)])
    groups = 2 * pieces // 16 % (BANKS // 4)
    axes.imshow(groups, cmap="Set2", vmin=0, vmax=7, aspect="auto")
    for (r, c), group in np.ndenumerate(groups):
        axes.text(c, r, group, ha="center", va="center", fontsize=7, fontweight="bold" if r < 8 and c == 0 else "normal")
    axes.add_patch(plt.Rectangle((-0.48, -0.45), 0.96, 7.92, fill=False, linewidth=2))
    axes.set_title(name)
    axes.set_xlabel("piece of 16 bytes in a row")
    axes.set_xticks(range(COLUMNS // 8))
panels[0].set_ylabel("row")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Step 5: tensor cores
#
# A tensor core multiplies small matrices in one instruction of a whole warp. `mma.m16n8k16` adds to 16 x 8 sums the product of a 16 x 16
# matrix and a 16 x 8 one. No thread has a row or a column: the elements of each matrix are spread over the registers of all 32 lanes, and
# who holds what is a table in NVIDIA's manual. Such a spread-out matrix is called a **fragment**.
#
# That table is a `BitLayout`, too: bits of the register's number and bits of the lane go to bits of the row `m` and the column `n`. The
# pictures show the number of the lane that holds each element.

# %%
fragments = mma_fragments(16, 16)  # k is 16, elements of 16 bits
print("sums:", fragments.sums)
register, lane = Var("register", i64), Var("lane", i64)
for name, index in zip("mn", fragments.sums.exprs(register=register, lane=lane)):
    print(f"  {name} = {index}")

figure, panels = plt.subplots(1, 3, figsize=(9, 3.4), gridspec_kw={"width_ratios": [16, 8, 8]})
operands = {"A (16 x 16)": fragments.lhs, "B (16 x 8)": fragments.rhs, "sums (16 x 8)": fragments.sums}
for axes, (name, fragment) in zip(panels, operands.items()):
    sizes = dict(fragment.inputs)
    owner = np.zeros([size for _, size in fragment.outputs], int)
    for each in range(sizes["lane"]):
        for number in range(sizes["register"]):
            owner[fragment(lane=each, register=number)] = each
    axes.imshow(owner, cmap="viridis", aspect="auto")
    for (r, c), each in np.ndenumerate(owner):
        axes.text(c, r, each, ha="center", va="center", fontsize=6, color="white" if each < 20 else "black")
    axes.set_title(name)
    axes.set_xticks([])
    axes.set_yticks([])
figure.tight_layout()
plt.show()

# %% [markdown]
# A schedule for them has many steps, and it would be a pity to write it by hand: this is what **rules** are for. `apply_rules` looks at
# the program and at the facts of the device and yields a schedule made of the very steps that we used, with tensor cores where the
# dtypes allow them. Products of halves with sums in f32 do.

# %%
halves = definition(dtype=f16)
scheduled = apply_rules(halves, target)
print(f"rule: {scheduled.rule}, {len(scheduled.trace.steps)} steps, the last ones of them:")
show("\n".join(map(str, scheduled.trace.steps[-6:])))

program = finish_loops(scheduled.func, calls=backend_of(target).finish, features=gpu.features)
show(print_ir(program), first=3)

# %% [markdown]
# You can find everything again that we met: tiles in shared memory, their places mixed by `bit_xor`, barriers, fragments in registers.
# What is new are copies that a thread does not wait for (`copy_async`): while one stage is multiplied, the next one is on its way.
#
# `warp(...)` is an instruction of the whole warp. The interpreter knows it by its definition: it gathers the fragments of all 32 lanes by
# their layouts, multiplies matrices, and spreads the sums out again. So this program, too, runs here and is checked, races and unfinished
# copies included.

# %%
halves_a, halves_b = a.astype(np.float16), b.astype(np.float16)
(result,) = run_prim_func(program, [halves_a, halves_b])
exact = halves_a.astype(np.float64) @ halves_b.astype(np.float64)
print(f"interpreter: differs from the exact product by {np.abs(result - exact).max():.1e}")
assert np.abs(result - exact).max() < 1e-4

barriers = [node for node in walk_statements(program.body) if isinstance(node, Barrier)]
try:
    run_prim_func(without_barrier(program, len(barriers) - 1), [halves_a, halves_b])
    print("without the last barrier: no complaint")
except VerifyError as error:
    print("without the last barrier:", error)

# %% [markdown]
# ## Step 6: the text, and what it needs
#
# `language_of` writes a finished program in a language of a target: CUDA-C for NVIDIA's compiler, or PTX, the assembly of an idealized GPU.
# Both are text, and need no device. Here is the part of the PTX that does the work.

# %%
sm_80 = Target.parse("cuda:sm_80@x86-64-v3")
ptx = language_of("ptx", sm_80).write(program, "matmul", sm_80)
kinds = {"tensor cores": "mma.sync", "loads of fragments": "ldmatrix", "asynchronous copies": r"cp\.async\.c[ag]", "barriers": "bar.sync",
         "loads from local memory": r"ld\.local"}  # fmt: skip
print({name: len(re.findall(kind, ptx)) for name, kind in kinds.items()})
lines = ptx.splitlines()
first = next(k for k, line in enumerate(lines) if "ldmatrix" in line)
show("\n".join(lines), first=first - 3, count=24)

# %% [markdown]
# What decides how many threads a processor can hold is how many registers each of them needs, and how much shared memory a block takes.
# The last translation, from PTX to the machine's own instructions, chooses the registers; NVIDIA's `ptxas` does that without a GPU, too.
# If it is not installed, there is another compiler at hand that always tells: LLVM, inside of `tc`, generates code for AMD's GPUs from
# the same programs and writes into the assembly what it used. Too few registers means *spills*: values that are put into slow memory and
# fetched back. None should be there.

# %%
amd = Target.parse("rocm:gfx90a@x86-64-v3")


def nvidia_registers(program):
    """Registers of a thread, and bytes spilled, as ptxas says; None without it."""
    if shutil.which("ptxas") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "k.ptx").write_text(language_of("ptx", sm_80).write(program, "k", sm_80))
        command = ["ptxas", "-arch=sm_80", "-v", "k.ptx", "-o", "k.cubin"]
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stderr
    spilled = sum(int(number) for number in re.findall(r"(\d+) bytes spill", said))
    return int(re.search(r"Used (\d+) registers", said)[1]), spilled


def amd_registers(program):
    """The same of a lane of AMD's, from the assembly."""
    (found,) = wave_resources(language_of("amdgpu", amd).write(program, "k", amd))
    return found.vector, 4 * found.spilled


print(f"{'':13} threads  shared bytes      registers, spilled bytes  blocks and warps on a processor")
for name, each in {**steps, "tensor cores": program}.items():
    (launch,) = launches_of(each)
    threads = int(np.prod(launch.threads))
    found, who = nvidia_registers(each), "ptxas"
    if found is None and name != "tensor cores":  # those are NVIDIA's instructions
        found, who = amd_registers(each), "LLVM, gfx90a"
    if found is None:
        print(f"{name:13} {threads:7} {launch.shared_bytes:13}   (needs ptxas)")
        continue
    blocks = occupancy(threads, found[0], launch.shared_bytes, gpu)
    used = f"{who:>12}: {found[0]:3}, {found[1]}"
    print(f"{name:13} {threads:7} {launch.shared_bytes:13}  {used} {blocks:17}, {blocks * threads // gpu.warp_size}")

# %% [markdown]
# Do not read the last column as a score. More warps hide more waiting, and a warp that holds its sums in registers has less to wait for:
# the fast kernels are not those with the most warps.
#
# ## The way of a whole model
#
# Everything so far happens for each kernel of a model when it is compiled for a device. With an OpenCL device it also runs, from the same
# kernels that a GPU would get; without one it can still be written down. The command line does the same:
#
# ```
# tc run model.onnx --target opencl
# tc compile model.onnx --target cuda:sm_90 --emit cuda -o folder      # ptx as well; the folder has a build line
# tc inspect model.onnx --target cuda:sm_90                            # what stays on the host, and why
# ```

# %%
files = tc.lower(MODEL_PATH, "cuda", "cuda:sm_90").files()
print("files of the digits' model for cuda:sm_90:", ", ".join(sorted(files)))
show(files["softmax.cu"], count=14)

images, labels = load_heldout()
if opencl is not None:
    digits = tc.compile(MODEL_PATH, target="opencl")
    right = (digits(as_model_input(images[:200])).argmax(1) == labels[:200]).mean()
    print(f"\nby OpenCL, {right:.1%} of 200 digits are read right")

# %% [markdown]
# ## Try it yourself
#
# - Change `TILE` and `OWN` to 64 and 8, then 128 and 16, and look at the table of registers. How large can a thread's tile become before
#   something spills? How many blocks are left on a processor by then?
# - `tiled` has no conflicts. Swap the last two axes in the binding of its copies and count the wavefronts again.
# - Let the sum's `stage` loop be pipelined (`s.pipeline(stage, 2)` in `in_registers`): what becomes of the barriers?
# - Remove `s.reorder(stage, thread_i, thread_j, k)` from `tiled`. What does the compiler say, and what would the program mean without the
#   complaint?
# - If you have a GPU: `tc run model.onnx --target cuda` runs what you have just read. Now measure.
