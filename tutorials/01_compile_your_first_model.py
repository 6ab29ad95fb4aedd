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
# # Compile your first model
#
# A trained network comes as a file: a list of operators and their weights. To *run* it, somebody has to turn "convolution, then
# addition, then maximum with zero" into instructions of the processor at hand. A compiler does that once, ahead of time, for
# the whole network, and can therefore do what a library of ready-made operators cannot: compute several operators in one pass over
# the data, choose loops and memory for exactly these shapes, and leave nothing to decide when the model runs.
#
# This tutorial takes two models through the compiler `tc`:
#
# 1. a single layer that we write down ourselves, small enough to read every stage from the file to the assembly;
# 2. a convolutional network that reads handwritten digits, to see what changes with a real one: what is fused and why, one program
#    for every batch size, where memory and time go.
#
# You need to know what a matrix product and a convolution are. You need not know anything about compilers. Every step says what to
# look at. All numbers are measured, or counted, on the machine on which the notebook was run last; run it on yours and they change.

# %%
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.compiler import run_stages
from tc.demo import MODEL_PATH, as_model_input, load_heldout
from tc.ir.arith import evaluate
from tc.ir.plan import Launch, SlotPlace

QUICK = "TC_TUTORIAL_QUICK" in os.environ  # fewer repetitions, for tests
os.environ["TC_CACHE_DIR"] = "off"  # tc keeps what it has compiled; here everything is compiled before your eyes
plt.rcParams.update({"figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False, "font.size": 9})


def show(text, first=0, count=None, width=150):
    """Print `count` lines of a text, from line number `first` on; long lines are cut."""
    lines = text.strip("\n").splitlines()
    last = len(lines) if count is None else first + count
    for line in lines[first:last]:
        print(line if len(line) <= width else line[: width - 2] + " …")
    if last < len(lines):
        print(f"… {len(lines) - last} more lines")


target = tc.Target.parse("native")
print(f"this machine: {target.cores} cores, vectors of {target.lanes(32)} floats, {target.num_vector_registers} vector registers,")
print(f"caches: L1 {target.l1_bytes >> 10} KiB, L2 {target.l2_bytes >> 10} KiB")

# %% [markdown]
# ## A layer of our own
#
# An ONNX file is a *graph*: a list of nodes, each with an operator, the names of what it reads and the name of what it writes.
# Here is a fully connected layer, $y = \max(xW + b, 0)$, for 42 inputs at a time. Three nodes, two of which read weights; the
# values in between (`xw`, `z`) have names so that nodes can refer to each other, and no other meaning.

# %%
rng = np.random.default_rng(0)
weight = rng.standard_normal((64, 32), np.float32)
bias = rng.standard_normal(32, np.float32)

layer = helper.make_model(
    helper.make_graph(
        nodes=[
            helper.make_node("MatMul", ["x", "weight"], ["xw"], name="product"),
            helper.make_node("Add", ["xw", "bias"], ["z"], name="add_bias"),
            helper.make_node("Relu", ["z"], ["y"], name="activation"),
        ],
        name="layer",
        inputs=[helper.make_tensor_value_info("x", TensorProto.FLOAT, [42, 64])],
        outputs=[helper.make_tensor_value_info("y", TensorProto.FLOAT, [42, 32])],
        initializer=[numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")],
    ),
    opset_imports=[helper.make_opsetid("", 17)],
)
onnx.checker.check_model(layer)

# %% [markdown]
# One call compiles it; what comes back is a function from arrays to arrays. The first question to ask of any compiler is whether
# the result is right, so we compute the same in numpy and compare.

# %%
module = tc.compile(layer)
x = rng.standard_normal((42, 64), np.float32)
y = module(x)

expected = np.maximum(x @ weight + bias, 0)
print("inputs: ", *module.inputs)
print("outputs:", *module.outputs)
print(f"largest value {np.abs(expected).max():.1f}, largest difference {np.abs(y - expected).max():.1e}")
assert np.abs(y - expected).max() < 1e-4

# %% [markdown]
# The difference is not always zero, and that is no error. Floating-point addition rounds, so $(a + b) + c$ and $a + (b + c)$
# differ in the last digits, and the 64 terms of each sum here are added in an order that suits the processor. A float has about 7
# decimal digits; what counts is the difference relative to the largest values.
#
# ## From the graph to instructions, stage by stage
#
# Now look inside. `tc.lower(model, stage)` stops the compiler at a stage and prints the program as it is then. Every stage is text
# that you can read (and that `tc` can parse back).
#
# **Stage `graph`.** The operators, typed: `f32[42, 64]` is a matrix of floats. What to look at:
#
# - The three nodes have become *one* function, which `main` calls once. That is **fusion**: its three operators will share one
#   loop nest, and `matmul_packed` and `z` will never exist as matrices in memory.
# - The weight is no longer a 64 x 32 matrix: the compiler has *packed* it, now, when it compiles, into the order in which
#   the loops will read it (`f32[panels, 64, columns of a panel]`).
# - The comments are the names of your nodes. They are carried through all stages, so that errors and profiles can name them.

# %%
show(tc.lower(layer, "graph").as_text())

# %% [markdown]
# **Stage `loops`.** Each operator is expanded into the loops that define it, in the plainest way: one nest per operator, full-size
# matrices between them. This is the *meaning* of the kernel, and nothing about speed has been decided.
#
# Look at the word `block`. A block is one unit of computation with its own axes: `spatial` axes choose an element of the result,
# so their iterations are independent; a `reduction` axis runs over the terms of a sum, so its iterations all update the same
# element. The loops outside merely say in which order the block's points are visited. Because the two are separate, the compiler
# knows which loops may be split, swapped or run in parallel without looking at the arithmetic again.

# %%
kernel = module.report().kernels[0].name
show(tc.lower(layer, "loops").as_text(kernel))

# %% [markdown]
# **Stage `scheduled`.** A *schedule* is a list of small, legal changes of the loops. What the compiler decided here, by rules:
#
# - The sum is computed for one **tile** of the result at a time, several rows by a few vectors of columns, and the tile lives in
#   `scope='register'`: while the whole sum runs, no partial sum is written to memory.
# - The loops over the tile are `unrolled` (written out) and `vectorized` (one instruction for as many columns as a vector
#   register holds). The reduction loop now stands *outside* of them: each step of the sum updates the whole tile.
# - The addition of the bias and the maximum with zero are applied to the tile when its sums are done: one loop nest, where there
#   were three.
#
# Tutorial 2 builds such a schedule by hand and measures what each of these steps is worth.

# %%
show(tc.lower(layer, "scheduled").as_text(kernel))

# %% [markdown]
# The list of changes itself is data, too. Here it is; each line is a primitive and its arguments. Replaying these lines on the
# previous stage gives this one.

# %%
show(module.explain("product"))

# %% [markdown]
# **Stage `final`.** The blocks have done their work and are gone; indices are simplified; buffers have shrunk to what is alive at
# a time (`alloc(f32[rows, columns], scope='register')`: only the tile is left of the whole matrix). This is what code
# is generated from.

# %%
show(tc.lower(layer, "final").as_text(kernel))

# %% [markdown]
# **Stages `llvm` and `asm`.** The loops become the intermediate language of LLVM, which allocates registers and selects
# instructions. `tc` does not ask LLVM to find vectors: types such as `<16 x float>` are there from the start, because the schedule
# said so. These are the first lines of the innermost loop, where nearly all the time goes: look for `fma`, one multiplication and
# one addition per lane, rounded once.

# %%
llvm_text = tc.lower(layer, "llvm").as_text(kernel)
lines = llvm_text.splitlines()
start = next(number for number, line in enumerate(lines) if "fma" in line)
show(llvm_text, first=start - 4, count=10)


# %%
def innermost_loop(assembly):
    """The lines between a label and the jump back to it, of the loop with the most multiply-adds."""
    lines = assembly.splitlines()
    labels = {line[:-1]: number for number, line in enumerate(lines) if line.startswith(".LBB")}
    loops = []
    for number, line in enumerate(lines):
        words = line.split()
        if len(words) == 2 and words[0].startswith("j") and labels.get(words[1], number) < number:
            loops.append(lines[labels[words[1]] : number + 1])
    return max(loops, key=lambda loop: (sum("fmadd" in line for line in loop), -len(loop)))


loop = innermost_loop(tc.lower(layer, "asm").as_text(kernel))
show("\n".join(loop), count=12)
counts = Counter(line.split()[0] for line in loop if line.startswith("\t") and "." not in line.split()[0])
print("\nin all:", ", ".join(f"{count} {name}" for name, count in counts.most_common(6)))
multiply_adds = sum(count for name, count in counts.items() if "fmadd" in name)
print(f"{multiply_adds} of {counts.total()} instructions of the loop are multiply-adds of {target.lanes(32)} floats each")

# %% [markdown]
# This is the point of all the stages. A core can start one or two vector multiply-adds per cycle, and nothing it does otherwise
# makes the result come sooner. So the share of multiply-adds among the instructions of the innermost loop says how good the loop
# can be. Compare with what the stage `loops` says literally: load the sum, load two factors, multiply, add, store the sum, for
# one element at a time.
#
# ## A network that reads digits
#
# The package contains a small convolutional network, trained on handwritten digits of 8 x 8 pixels, and 360 digits that took no part
# in training. `tc.inspect` reads the file without compiling it.

# %%
found = tc.inspect(MODEL_PATH)
for value in (*found.inputs, *found.outputs):
    print(f"{value.name}: {value.dtype}[{', '.join(map(str, value.shape))}]")
print("operators:", ", ".join(f"{name} {count}" for name, count in Counter(node.op_type for node in found.nodes).items()))
print("how they will run:", dict(Counter(node.status for node in found.nodes)))

# %% [markdown]
# Look at the type of the input: its first dimension is not a number but a name, `batch`. The file says that any number of images
# may come. Keep this in mind; the compiled program will take any number, too.

# %%
digits = tc.compile(MODEL_PATH)
images, labels = load_heldout()
inputs = as_model_input(images)
probability = digits(inputs)
read = probability.argmax(axis=1)
print(f"{(read == labels).sum()} of {len(labels)} digits read correctly")

figure, axes = plt.subplots(1, 10, figsize=(9, 1.2))
for image, digit, axis in zip(images, read, axes):
    axis.imshow(image, cmap="gray_r")
    axis.set_title(str(digit))
    axis.axis("off")
plt.show()

# %% [markdown]
# ### Is it right?
#
# That most digits are read correctly shows little: a small error in a kernel might go unnoticed. There are two references.
#
# `tc.interpret` is the **reference interpreter**: it walks the graph operator by operator, in numpy, and is the meaning that
# every kernel is tested against. It shares the front end with the compiler, though, so a misread file would be misread by both.
# So here is a second one, which shares nothing: the eight operators of this network, as one line of numpy each.

# %%
def convolve(x, weight):
    """3x3, padded by one on every side: for each pixel, the products of its neighbourhood and the weights, summed up."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weight)


def per_channel(value):
    return value[:, None, None]


OPERATORS = {
    "Mul": lambda a, b: a * b,
    "Add": lambda a, b: a + b,
    "Relu": lambda x: np.maximum(x, 0),
    "Conv": convolve,
    "BatchNormalization": lambda x, scale, shift, mean, variance: (
        per_channel(scale) * (x - per_channel(mean)) / np.sqrt(per_channel(variance) + 1e-5) + per_channel(shift)
    ),
    "MaxPool": lambda x: x.reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2).max(axis=(3, 5)),
    "Flatten": lambda x: x.reshape(len(x), -1),
    "Gemm": lambda x, weight, bias: x @ weight + bias,
    "Softmax": lambda x: np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True),
}

graph = onnx.load(MODEL_PATH).graph
values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
values["image"] = inputs[:20]
for node in graph.node:
    values[node.output[0]] = OPERATORS[node.op_type](*(values[name] for name in node.input))

by_numpy = values[graph.output[0].name]
by_interpreter = tc.interpret(MODEL_PATH, {"image": inputs[:20]})["probability"]
print(f"compiled against interpreted: {np.abs(probability[:20] - by_interpreter).max():.1e}")
print(f"compiled against numpy:       {np.abs(probability[:20] - by_numpy).max():.1e}")
assert np.abs(probability[:20] - by_numpy).max() < 1e-5

# %% [markdown]
# Probabilities are at most 1, so these differences are a few units of the seventh digit.
#
# With `tc.compile(path, verify="always")` the compiler does such a comparison by itself, kernel by kernel: the interpreter runs the
# model on a random input, and whenever it has computed what a kernel computes, the kernel gets the same operands. An error then
# names the kernel and the node.

# %%
tc.compile(MODEL_PATH, verify="always")
print("every kernel agrees with the reference interpreter")

# %% [markdown]
# ## What was fused, and why
#
# The report lists every kernel, and the nodes of the model that it computes.

# %%
report = digits.report()
for entry in report.kernels:
    print(f"{entry.name:24} [{entry.rule}]  <-  {', '.join(entry.nodes)}")
print(f"\n{len(found.nodes)} nodes, {len(report.kernels)} kernels")

# %% [markdown]
# There are far fewer kernels than nodes. Three things happened.
#
# - The **batch normalizations are gone**. In inference they multiply each channel by a constant and add another; both were
#   folded into the weights and the bias of the convolution in front, when the model was compiled.
# - **Elementwise operators moved into the kernel that makes their operand.** Where an element of a result depends on one
#   element of an operand, it can be computed while that element is still in a register. `add_9` is the interesting one: it adds two
#   values, and could join the producer of either. It joined the one that is computed last, since only then are both there.
# - A convolution does **not** fuse with the next one, and pooling not with the convolution in front: each element of the second
#   needs a whole neighbourhood of elements of the first, and computing them again for every neighbour would cost more than the
#   trip through memory.
#
# What a node's operators may be fused with is not looked up in a table of names; it is read off the loops that define the
# operator (the axes of its blocks, and how they index the operands).
#
# `explain` says for a node in which kernel it runs, with what, and how that kernel is scheduled.

# %%
show(digits.explain("add_9"), count=14)

# %% [markdown]
# What is it worth? Count the bytes of all values that exist in memory, before and after. Each of them is written once and read at least
# once, and memory is what most elementwise operators wait for.

# %%
stages = run_stages(MODEL_PATH, target)  # everything the compiler makes on the way, as Python objects
batch = stages.plan.inputs[0].type.shape[0]  # a variable: the name `batch` in the model's types


def size_of(expression, count):
    """An expression over the batch size, at `count` images."""
    return int(evaluate(expression, {batch: count}))


def bytes_of_values(function, count=64):
    """Bytes of all values that a graph function computes for `count` images."""
    sizes = [var.type.size_bytes for binding in function.bindings for var in binding.targets]
    return sum(size_of(size, count) for size in sizes)


before, after = bytes_of_values(stages.imported.module.main), bytes_of_values(stages.graph.main)
print(f"as imported: {len(stages.imported.module.main.bindings)} values, {before / 1e6:.2f} MB for 64 images")
print(f"fused:       {len(stages.graph.main.bindings)} values, {after / 1e6:.2f} MB: {before / after:.1f} times less")

# %% [markdown]
# Another thing changed, which the types of the fused graph show. The images of the network are four-dimensional, `[batch, channels,
# rows, columns]`; the compiler moved blocks of channels to the end (`[batch, blocks, rows, columns, channels of a block]`), as
# many as fit a vector register. Then the vector loop of a convolution runs over neighbours in memory. This **layout** is converted
# only where it has to be: at the ends (one kernel above is called `unblock…` for it), not around each convolution.

# %%
for binding in stages.graph.main.bindings:
    (result,) = binding.targets
    print(f"{result.name:16} {result.type}")

# %% [markdown]
# ## One program for every batch size
#
# `batch` was a name in the model's types, and it is still one in the compiled code: a run-time value. Sizes, loop bounds and memory
# are formulas over it. No recompilation happens below.

# %%
print("symbolic dims:", digits.dims)
for count in (1, 2, 17, 360):
    part = digits(inputs[:count])
    assert np.allclose(part, probability[:count], atol=1e-6)
    print(f"{count:3} images -> {part.shape}")

# %% [markdown]
# How can a kernel have a fixed tile of rows if the number of rows is not known? Look at the matrix product at the end of the
# network. There are two versions of it, and a test on `batch` chooses when it runs: with enough rows the tiles are full, and the
# last one is shifted back to end where the rows end (the `min` in the index: some rows are then computed twice, with the same
# result, which is cheaper than a special case). With fewer rows, single rows are computed.

# %%
product = next(entry.name for entry in report.kernels if "gemm_16" in entry.nodes)
show(tc.lower(MODEL_PATH, "final").as_text(product))

# %% [markdown]
# If you know more, say so. With the promise that `batch` lies between 16 and 64 the compiler can prove that the test is always
# true, and drops it together with the second version. Promises are checked when the module runs.

# %%
promise = {"batch": tc.Dim(16, 64)}
text = tc.lower(MODEL_PATH, "final", dims=promise).as_text(product)
show(text, count=6)
print("is there a second version?", "else:" in text)

limited = tc.compile(MODEL_PATH, dims=promise)
try:
    limited(inputs[:3])
except tc.TcError as error:
    print(f"{type(error).__name__}: {error}")

# %% [markdown]
# Shapes that do not fit are refused in the same way, before anything runs, and in terms of the model's own names.

# %%
try:
    digits(inputs[:, :, :7])
except tc.TcError as error:
    print(f"{type(error).__name__}: {error}")

# %% [markdown]
# ## Memory
#
# Values between kernels live in one piece of memory, the *arena*. The compiler has laid it out: two values may share a place if
# one is dead before the other is born. Its size is a formula over the dims, so the memory that a call will need is known before the
# call.

# %%
print("arena:", stages.plan.arena_bytes, "bytes")
for count in (1, 16, 256):
    print(f"{count:4} images: {digits.peak_bytes(batch=count) / 1e3:8.1f} kB for values in between and the result")

# %% [markdown]
# The picture shows the plan. Time runs to the right, one column per kernel; each box is a value, from the kernel that writes it to
# the last one that reads it; its height is its size, its place the bytes of the arena that it occupies.
#
# Look for two things. Boxes above each other never share a byte while both are needed. And a box may begin in a column in which the
# value at its place is still read: that kernel writes its result over an operand, element by element, which it may because each
# element is read before it is overwritten (the compiler has proven that; it is the note `in_place` in the stage `final`).

# %%
COUNT = 64
boxes, at_offset = [], {}
launches = [step for step in stages.plan.steps if isinstance(step, Launch)]
for column, launch in enumerate(launches):
    num_outputs = stages.kernels[launch.kernel].final.num_outputs
    for place, slot in enumerate(launch.slots):
        if slot.place is not SlotPlace.ARENA:
            continue
        offset = size_of(slot.offset, COUNT)
        if place >= len(launch.slots) - num_outputs:
            if offset in at_offset and at_offset[offset]["last"] == column:
                at_offset[offset]["overwritten"] = True
                print(f"{launch.kernel} writes over an operand")
            size = size_of(slot.type.size_bytes, COUNT)
            at_offset[offset] = {"name": str(launch.span), "first": column, "last": column, "offset": offset, "size": size}
            boxes.append(at_offset[offset])
        else:
            at_offset[offset]["last"] = column

figure, axis = plt.subplots(figsize=(9, 3))
for number, box in enumerate(boxes):
    stop = box["last"] + (0 if box.get("overwritten") else 1)
    axis.bar(
        box["first"], box["size"] / 1e3, stop - box["first"], box["offset"] / 1e3, align="edge",
        color=f"C{number % 10}", alpha=0.5, edgecolor="black",
    )  # fmt: skip
    if box["size"] > size_of(stages.plan.arena_bytes, COUNT) / 20:
        axis.text((box["first"] + stop) / 2, (box["offset"] + box["size"] / 2) / 1e3, box["name"], ha="center", va="center")
axis.set_xticks([k + 0.5 for k in range(len(launches))], [launch.kernel for launch in launches], rotation=25, ha="right")
axis.set_ylabel(f"kB of the arena, {COUNT} images")
axis.set_title("who lives where in the arena")
plt.show()

total = sum(box["size"] for box in boxes)
print(f"the values together: {total / 1e3:.0f} kB; the arena: {size_of(stages.plan.arena_bytes, COUNT) / 1e3:.0f} kB")

# %% [markdown]
# ## Where time goes
#
# `profile` runs the model with a clock around every kernel. The interesting column is the share: a kernel that takes 2% of the time
# is not worth anybody's attention.

# %%
single = tc.compile(MODEL_PATH, threads=1)
timed = single.profile(inputs[:64], repeat=10 if QUICK else 200)
total = sum(launch.seconds for launch in timed)
for launch in timed:
    print(f"{launch.seconds * 1e6:8.1f} µs  {launch.seconds / total:5.1%}  {launch.kernel}")
contractions = {entry.name for entry in report.kernels if entry.rule == "contraction"}
share = sum(launch.seconds for launch in timed if launch.kernel in contractions) / total
print(f"sums of products (convolutions and the matrix product): {share:.0%} of the time")

figure, axis = plt.subplots(figsize=(8, 2.6))
axis.barh([launch.kernel for launch in timed][::-1], [launch.seconds * 1e6 for launch in timed][::-1])
axis.set_xlabel("µs for 64 images, one thread")
plt.show()


# %% [markdown]
# How does the time depend on the number of images? Everything that does not depend on it (the call from Python, checks, starting
# kernels) is shared by all images of a call. And a kernel needs enough work to keep its registers full and its threads busy.

# %%
def seconds_of(call, budget):
    """The median seconds of a call, over calls that fill `budget` seconds."""
    call()
    times, end = [], time.perf_counter() + budget
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


budget = 0.02 if QUICK else 0.3
sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256]
per_image = {}
for count in sizes:
    chosen = inputs[:count]
    per_image[count] = seconds_of(lambda chosen=chosen: single(chosen), budget) / count

slow = seconds_of(lambda: tc.interpret(MODEL_PATH, {"image": inputs[:64]}), budget) / 64
print(f"one image at a time: {per_image[1] * 1e6:.1f} µs; 256 at a time: {per_image[256] * 1e6:.1f} µs each")
print(f"64 at a time, interpreted: {slow * 1e6:.0f} µs each, {slow / per_image[64]:.0f} times as long as compiled")

figure, axis = plt.subplots(figsize=(6, 2.6))
axis.plot(sizes, [per_image[count] * 1e6 for count in sizes], marker="o")
axis.set_xscale("log", base=2)
axis.set_xticks(sizes, sizes)
axis.set_ylim(bottom=0)
axis.set_xlabel("images in a call")
axis.set_ylabel("µs per image")
plt.show()

# %% [markdown]
# How fast *could* it be? A kernel can be slow because its loops are poor, or because the processor cannot multiply any faster. Which
# of the two it is, `tc bench` says: it measures the limits of the machine in the same minute and prints each kernel's share of
# them. Tutorial 2 works with such a limit from its first step on.
#
# ## More threads, same bits
#
# A compiled module may use several threads. The order in which the terms of a sum are added is part of the schedule, not of the
# thread count, so the result is the same to the last bit. You can debug with one thread what you run with many.

# %%
several = tc.compile(MODEL_PATH, threads=target.cores)
assert np.array_equal(single(inputs), several(inputs))
print(f"1 thread and {target.cores}: equal bits")

# %% [markdown]
# ## Save and load
#
# Compiling takes a moment; the report says for what. A saved module contains machine code and weights and takes no compilation at all.
# It is data, not Python objects: nothing in the file can run when it is read, apart from the kernels that you call.

# %%
for stage, seconds in report.seconds:
    print(f"{stage:16} {seconds * 1e3:7.1f} ms")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.tcm"
    digits.save(path)
    start = time.perf_counter()
    again = tc.load(path)
    print(f"\nfile of {path.stat().st_size / 1e3:.0f} kB, loaded in {(time.perf_counter() - start) * 1e3:.1f} ms")
    assert np.array_equal(again(inputs), digits(inputs))

# %% [markdown]
# ## Try it yourself
#
# - Give the layer 40 rows instead of 42 and look at the stage `final`. The rows are no multiple of the tile's any more: what became
#   of the last ones?
# - Compile for another machine: `tc.lower(layer, "asm", target="x86-64-v3")` has vectors of 8 floats and 16 registers. How large
#   is the tile now, and what is the share of multiply-adds?
# - Compile with `numerics="strict"`: every operator is computed as it is defined. Which of the kernels above are different, and what
#   does `profile` say about them?
# - Take a model of your own. `tc inspect model.onnx` says how each node will run before you compile it.
