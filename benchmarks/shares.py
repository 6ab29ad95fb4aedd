"""Which share of what the machine can multiply low-precision products and convolutions reach.

    python -m benchmarks.shares                     8 bits, on the widest unit there is
    python -m benchmarks.shares --isa vnni          without tile registers
    python -m benchmarks.shares --seed 7            channels, rows and images drawn by a seed

The peak is a loop of nothing but products of random bytes, between registers, as many of them independent as hide their latency; it is
timed in turns with the kernel, and the share is the median over pairs of turns, one thread. (Tiles of zeros are multiplied a tenth
faster.) Every kernel takes and gives bytes: requantization is in.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import onnx

import tc
from benchmarks.precision import ISAS, held_target
from benchmarks.products import Arrays, integers, model, node
from tc.codegen.llvm.jit import compile_object, link
from tc.measure.harness import Plan, time_interleaved
from tc.target import Target, native_target

PEAK_STEPS = 20_000
CHAIN = 8
TILE_MACS = 16 * 16 * 64
VECTOR_SUMS = 12
"""Independent sums of vectors: two units, each of which takes five cycles."""


def peak_loop(target: Target) -> tuple[Callable[[int], object], int]:
    """A function of how many steps to run, and the multiply-adds of bytes in a step."""
    if "amx-int8" in target.features:
        products = "\n".join(f"  call void @llvm.x86.tdpbusd(i8 {k}, i8 {4 + k % 2}, i8 {6 + k // 2})" for k in range(4))
        zeros = "\n".join(f"  call void @llvm.x86.tilezero(i8 {k})" for k in range(4))
        loads = "\n".join(f"  call void @llvm.x86.tileloadd64(i8 {k}, ptr %place, i64 64)" for k in range(4, 8))
        config = "".join(f"\\{byte:02x}" for byte in [1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8])
        text = f"""
@config = internal constant [64 x i8] c"{config}"
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8)
declare void @llvm.x86.tileloadd64(i8, ptr, i64)
declare void @llvm.x86.tdpbusd(i8, i8, i8)
define void @run(i64 %steps, ptr %place) {{
start:
  call void @llvm.x86.ldtilecfg(ptr @config)
{zeros}
{loads}
  br label %again
again:
  %step = phi i64 [0, %start], [%next, %again]
{products}
  %next = add i64 %step, 1
  %more = icmp ult i64 %next, %steps
  br i1 %more, label %again, label %end
end:
  call void @llvm.x86.tilerelease()
  ret void
}}"""
        macs = 4 * TILE_MACS
    else:
        bits = target.vector_bits
        kind = f"<{bits // 32} x i32>"
        sums = [f"  %s{k} = phi {kind} [zeroinitializer, %start], [%n{k}, %again]" for k in range(VECTOR_SUMS)]
        name = f"@llvm.x86.avx512.vpdpbusd.{bits}"
        products = [f"  %n{k} = call {kind} {name}({kind} %s{k}, {kind} %a, {kind} %a)" for k in range(VECTOR_SUMS)]
        text = "\n".join(
            [
                f"declare {kind} {name}({kind}, {kind}, {kind})",
                "define void @run(i64 %steps, ptr %place) {\nstart:",
                f"  %a = load {kind}, ptr %place, align 4\n  br label %again\nagain:",
                "  %step = phi i64 [0, %start], [%next, %again]",
                *sums,
                *products,
                "  %next = add i64 %step, 1\n  %more = icmp ult i64 %next, %steps\n  br i1 %more, label %again, label %end\nend:",
                *(f"  store volatile {kind} %n{k}, ptr %place, align 4" for k in range(VECTOR_SUMS)),
                "  ret void\n}",
            ]
        )
        macs = VECTOR_SUMS * bits // 8
    library = link([compile_object(text, target)])
    run = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(library.address("run"))
    place = np.random.default_rng(0).integers(0, 256, 1024, np.uint8)
    return lambda steps: (library, run(steps, place.ctypes.data)), macs


def scales(rng: np.random.Generator, outputs: int, depth: int) -> Arrays:
    """Of a sum of `depth` products of bytes, so that the results fill theirs; one scale of the weights for each output."""
    return {
        "sx": np.array(0.02, np.float32),
        "zx": np.array(128, np.uint8),
        "sw": rng.uniform(0.005, 0.01, outputs).astype(np.float32),
        "zw": np.zeros(outputs, np.int8),
        "sy": np.array(0.02 * 0.0075 * 73 * 73 * depth**0.5 / 40, np.float32),
        "zy": np.array(128, np.uint8),
    }


def product(rng: np.random.Generator, rows: int, depth: int, columns: int) -> tuple[onnx.ModelProto, Arrays, int]:
    inputs = {"x": integers(rng, np.uint8, rows, depth)}
    literals = {"w": integers(rng, np.int8, depth, columns), **scales(rng, columns, depth)}
    nodes = [node("QLinearMatMul", ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"], "y")]
    return model(nodes, inputs, literals), inputs, rows * depth * columns


def convolutions(rng: np.random.Generator, channels: int, outputs: int, image: int, kernel: int) -> tuple[onnx.ModelProto, Arrays, int]:
    """CHAIN of them there and back, so that what turns images of pixels into blocks of channels hardly counts."""
    inputs = {"x": integers(rng, np.uint8, 1, channels, image, image)}
    nodes, literals, name = [], {}, "x"
    for k in range(CHAIN):
        read, written = (channels, outputs) if k % 2 == 0 else (outputs, channels)
        depth = read * kernel * kernel
        made = {"w": integers(rng, np.int8, written, read, kernel, kernel), **scales(rng, written, depth)}
        made |= {"b": rng.integers(-1000, 1000, written).astype(np.int32), "sx": made["sy"] if k else made["sx"]}
        literals |= {f"{each}{k}": array for each, array in made.items()}
        held = [f"{each}{k}" for each in ("sx", "zx", "w", "sw", "zw", "sy", "zy", "b")]
        nodes.append(node("QLinearConv", [name, *held], name := "y" if k == CHAIN - 1 else f"y{k}", pads=[kernel // 2] * 4))
    return model(nodes, inputs, literals), inputs, CHAIN * channels * outputs * kernel**2 * image * image


def rows(rng: np.random.Generator, drawn: bool) -> Iterator[tuple[str, tuple[onnx.ModelProto, Arrays, int]]]:
    if drawn:
        for _ in range(3):
            m, k, n = (int(each) for each in rng.integers(100, 1500, 3))
            yield f"product {m} x {k} x {n}", product(rng, m, k, n)
        for _ in range(6):
            c, o = (int(each) for each in rng.integers(64, 129, 2))
            image, kernel = int(rng.integers(14, 80)), int(rng.choice([1, 3]))
            yield f"{kernel}x{kernel}, {c} to {o} of {image}x{image}", convolutions(rng, c, o, image, kernel)
        return
    yield "product 1024 x 1024 x 1024", product(rng, 1024, 1024, 1024)
    for kernel in (3, 1):
        for channels, outputs, image in ((64, 64, 56), (128, 128, 28), (64, 128, 56)):
            yield f"{kernel}x{kernel}, {channels} to {outputs} of {image}x{image}", convolutions(rng, channels, outputs, image, kernel)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="for each row")
    parser.add_argument("--seed", type=int, help="draw the sizes")
    parser.add_argument("--isa", default="", choices=["", "vnni"], help="hold kernels to these instructions (default: all there are)")
    given = parser.parse_args()
    target = held_target(native_target(), ISAS[given.isa])
    loop, step_macs = peak_loop(target)
    print(f"share of the peak; {target.cpu}, {'tiles' if 'amx-int8' in target.features else f'{target.vector_bits} bits'}, one thread")
    for name, (graph, inputs, macs) in rows(np.random.default_rng(given.seed or 0), given.seed is not None):
        module = tc.compile(graph, target, threads=1)
        steps = max(1, macs // step_macs)
        timings = time_interleaved({"peak": partial(loop, steps), "tc": partial(module.run, inputs)}, Plan(budget_seconds=given.seconds))
        ratio = timings.ratio("peak", "tc")
        rules = ", ".join(kernel.rule for kernel in module.report().kernels)
        print(f"  {name:32} {ratio!s:20} {rules}", flush=True)


if __name__ == "__main__":
    main()
