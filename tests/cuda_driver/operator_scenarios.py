"""Operators on a CUDA device, run in a process whose driver is the fake one; their PTX, and nvcc's of their CUDA-C, in an interpreter."""

import ctypes
import os
import sys
import time
import traceback
import warnings

import numpy as np
from cuda_driver.driver import FakeDriver, main
from cuda_driver.interpreted import runs_in
from ops.kernels import make_prim_func

from tc.codegen.backends import backend_of
from tc.codegen.cuda.device import open_device
from tc.codegen.kernels import schedule_kernel
from tc.ir.dtype import from_numpy, pack, unpack
from tc.ir.parser import parse_prim_func
from tc.ops.registry import OPS
from tc.passes.loop.simplify_loops import simplify_loops
from tc.target import Target

LARGE = """
@loops
def f(A: f32[n, 64], B: f32[n, 64], n: i64):
    outputs(1)
    promise(n, 0, None, 1)
    for b in bound(n, 'block.x'):
        with alloc(f32[20000], scope='shared') as S:
            with alloc(f32[64], scope='shared') as T:
                for t in bound(64, 'thread.x'):
                    S[t * 300] = A[b, t]
                    T[t] = A[b, t] + 1.0
                    barrier()
                    B[b, t] = S[(63 - t) * 300] * T[t]
"""
VARIED = (
    *("argmax", "attention", "cast", "conv", "cumsum", "gather", "layer_norm", "matmul", "max_pool", "mod", "pow", "scatter_nd"),
    *("sin", "softmax", "transpose"),
)
TOLERANCES = {2: 1e-2, 4: 1e-5, 8: 1e-6}
PTX, CUDA_C = (Target.parse(f"cuda:sm_80{more}") for more in (",features=+ptx", ""))
fake = FakeDriver()
fake.run_image = runs_in(fake)
device = open_device(0)


def kernels(names=None):
    """The kernel of each sample of operators, with its arrays and what the reference gives."""
    for name in sorted(names or OPS):
        if OPS[name].compute is None:
            continue
        for number, (arrays, attrs) in enumerate(OPS[name].samples(np.random.default_rng(7))):
            func = simplify_loops(make_prim_func(OPS[name], arrays, attrs))
            yield f"{name}[{number}]", func, arrays, OPS[name].run_reference(arrays, OPS[name].attrs(attrs))


def on_device(kernel, arrays, target):
    """The outputs of a kernel on arrays."""
    backend = backend_of(target)
    library = backend.load(backend.make([backend.emit(kernel.final, kernel.symbol, target)], True, target), target)
    queue, blocks = device.new_queue(), []
    for array in arrays:
        data = pack(np.ascontiguousarray(array))
        blocks.append(device.allocate(data.nbytes))
        queue.upload(blocks[-1].address, data)
    shapes = [tuple(int(dim.value) for dim in buffer.shape) for buffer in kernel.final.outputs]
    outputs = [
        device.allocate(buffer.dtype.bytes_of(int(np.prod(shape)))) for buffer, shape in zip(kernel.final.outputs, shapes, strict=True)
    ]
    addresses = [block.address for block in (*blocks, *outputs)]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * (len(addresses) + 1))(library.address(kernel.symbol))(*addresses, queue.address)
    queue.finish()
    return [
        unpack(device.read(queue, block.address, buffer.dtype.bytes_of(int(np.prod(shape)))), buffer.dtype, shape)
        for block, buffer, shape in zip(outputs, kernel.final.outputs, shapes, strict=True)
    ]


def assert_same(actual, expected):
    assert actual.shape == expected.shape
    if expected.dtype.kind in "fV" and expected.dtype.itemsize > 1:
        tolerance = TOLERANCES[expected.dtype.itemsize]
        np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance)
    elif expected.dtype.kind in "fV":
        np.testing.assert_array_equal(actual.astype(np.float32), expected.astype(np.float32))
    else:
        np.testing.assert_array_equal(actual, expected)


def check(kernel, arrays, expected, target):
    fake.clear()
    found = on_device(kernel, [array for array in arrays if array is not None], target)
    assert not fake.complaints, fake.complaints
    for a, e in zip(found[: len(expected)], expected, strict=True):
        assert_same(a, e)


def a_sample_of_each_rule_equals_the_reference():
    seen = set()
    for name, func, arrays, expected in kernels(VARIED):
        operator = name.partition("[")[0]
        if operator in seen:
            continue
        seen.add(operator)
        check(schedule_kernel(func, PTX), arrays, expected, PTX)

    assert seen == set(VARIED)


def cuda_c_through_nvcc_equals_the_reference():
    seen = set()
    for _name, func, arrays, expected in kernels(("add", "matmul", "softmax", "conv", "transpose", "sum", "erf")):
        kernel = schedule_kernel(func, CUDA_C)
        if kernel.rule not in seen:
            seen.add(kernel.rule)
            check(kernel, arrays, expected, CUDA_C)

    assert len(seen) > 2, seen


def a_block_with_more_shared_memory_than_a_function_may_declare_runs_by_both_emitters_and_nvcc():
    func, x = parse_prim_func(LARGE), np.random.default_rng(0).random((3, 64), np.float32)
    for target in (PTX, CUDA_C):
        backend = backend_of(target)
        library = backend.load(backend.make([backend.emit(func, "large", target)], True, target), target)
        queue, a, b = device.new_queue(), device.allocate(x.nbytes), device.allocate(x.nbytes)
        queue.upload(a.address, x)
        fake.clear()
        ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(library.address("large"))(a.address, b.address, 3, queue.address)
        found = device.read(queue, b.address, x.nbytes).view(np.float32).reshape(x.shape)

        assert any("shared 80256 " in line for line in fake.log) and not fake.complaints, (fake.log, fake.complaints)
        np.testing.assert_allclose(found, x[:, ::-1] * (x + 1), rtol=1e-6)


def elements_that_share_bytes_are_all_written():
    """Each by a thread of its own: they lost the other half of the byte."""
    count = 0
    for _name, func, arrays, expected in kernels(("quantize_linear",)):
        if from_numpy(expected[0].dtype).per_byte > 1:
            count += 1
            check(schedule_kernel(func, PTX), arrays, expected, PTX)

    assert count > 1


def nvcc_writes_elements_that_share_bytes():
    for _name, func, arrays, expected in kernels(("quantize_linear",)):
        if from_numpy(expected[0].dtype).per_byte > 1:
            check(schedule_kernel(func, CUDA_C), arrays, expected, CUDA_C)


def all_of(target, names):
    """Every sample; prints what differs. Slow."""
    failed = count = 0
    for name, func, arrays, expected in kernels(names):
        start, count = time.perf_counter(), count + 1
        try:
            check(schedule_kernel(func, target), arrays, expected, target)
        except BaseException:
            failed += 1
            said = fake.complaints[-1][-600:] if fake.complaints else traceback.format_exc()[-600:]
            print(f"{name}:\n{said}", flush=True)
            fake.library.fake_revive()
        if time.perf_counter() - start > 20:
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    print(f"{count} kernels, {failed} differ")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["all"]:
        all_of({"ptx": PTX, "cuda": CUDA_C}[sys.argv[2]], sys.argv[3:] or None)
    else:
        main(globals())
    os._exit(0)
