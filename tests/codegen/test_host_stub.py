"""Host code that launches device functions, and the memory and queues of an OpenCL device, on texts written by hand."""

import ctypes
import os

import numpy as np
import pytest

from tc.codegen.device_library import load_kernels
from tc.codegen.launches import launches_of
from tc.codegen.llvm.host_stub import Image, emit_host_stub, with_image
from tc.codegen.llvm.jit import compile_group, compile_object
from tc.codegen.llvm.object_symbols import symbols_of
from tc.errors import CodegenError, UserError
from tc.ir.expr import Const
from tc.ir.parser import parse_prim_func
from tc.target import native_target
from tests.opencl_driver import need_opencl

REVERSED = """
@loops
def f(A: f32[n, 64], B: f32[n, 64], n: i64):
    outputs(1)
    promise(n, 0, None, 1)
    for k in range(2):
        for b in bound(n, 'block.x'):
            with alloc(f32[64], scope='shared') as S:
                for t in bound(64, 'thread.x'):
                    S[t] = A[b, t]
                    barrier()
                    B[b, t] = S[63 - t] + B[b, t] * cast(k, f32)
"""
TEXT = """
__kernel void reversed_0(__global const float* A, __global float* B, long n, long k) {
    __local float S[64];
    long b = get_group_id(0), t = get_local_id(0);
    S[t] = A[b * 64 + t];
    barrier(CLK_LOCAL_MEM_FENCE);
    B[b * 64 + t] = S[63 - t] + (k ? B[b * 64 + t] * k : 0);
}
"""


def test_a_launch_takes_the_buffers_dims_and_host_variables_that_it_uses():
    (launch,) = launches_of(parse_prim_func(REVERSED))

    assert [buffer.name for buffer in launch.buffers] == ["A", "B"]
    assert [var.name for var in launch.scalars] == ["n", "k"]
    assert launch.threads == (64, 1, 1) and launch.grid[0] is launch.scalars[0]
    assert launch.shared_bytes == 256 and isinstance(launch.grid[1], Const)
    assert {buffer.name for buffer in launch.written} == {"B"}


def test_host_code_that_touches_memory_is_refused():
    func = parse_prim_func(REVERSED.replace("for k in range(2):", "for k in range(2):\n        B[0, 0] = 1.0"))

    with pytest.raises(CodegenError, match="a store stands outside of every loop that is bound to a device"):
        launches_of(func)


def test_sizes_that_only_the_device_knows_are_refused():
    func = parse_prim_func(REVERSED.replace("bound(n, 'block.x')", "bound(cast(A[0, 0], i64), 'block.x')"))

    with pytest.raises(CodegenError, match="not known before the launch"):
        launches_of(func)


@pytest.fixture(scope="module")
def device():
    need_opencl()
    from tc.codegen.opencl.device import open_device

    return open_device(0)


def test_a_stub_launches_once_per_iteration_of_the_loops_around(device):
    stub = emit_host_stub(parse_prim_func(REVERSED), "reversed", Image(TEXT, ("reversed_0",), (256,)), "tc_opencl")
    library = load_kernels([compile_object(stub)], device)
    queue, x = device.new_queue(), np.random.default_rng(0).random((5, 64), np.float32)
    a, b = device.allocate(x.nbytes), device.allocate(x.nbytes)

    queue.upload(a.address, x)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(library.address("reversed"))
    call(a.address, b.address, 5, queue.address)
    call(a.address, b.address, 0, queue.address)
    found = np.empty_like(x)
    queue.download(found, b.address)

    assert np.array_equal(found, x[:, ::-1] * 2)


def test_objects_that_are_made_together_have_their_own_functions(device):
    func = parse_prim_func(REVERSED)
    texts = [
        emit_host_stub(func, name, Image(TEXT.replace("reversed", name), (f"{name}_0",), (256,)), "tc_opencl") for name in ("one", "other")
    ]

    first, second = compile_group(texts, True, native_target())
    library = load_kernels([first, second], device)

    assert symbols_of(first).defined == {"one", "one_image", "one_handles"}
    assert symbols_of(second).defined == {"other", "other_image", "other_handles"}
    for name in ("one", "other"):
        assert (ctypes.c_int64 * 2).from_address(library.address(f"{name}_handles"))[0] != 0


def test_an_image_is_exchanged_in_a_stub():
    stub = emit_host_stub(parse_prim_func(REVERSED), "f", Image(TEXT, ("reversed_0",), (256,)), "tc_opencl")
    other = Image("other \\ text", ("reversed_0",), (256,), "-x")
    seen = []

    changed = with_image(stub, lambda image: seen.append(image) or other)

    assert seen == [Image(TEXT, ("reversed_0",), (256,))]
    assert changed == emit_host_stub(parse_prim_func(REVERSED), "f", other, "tc_opencl")
    assert with_image(stub, lambda image: image) is stub


def test_text_that_the_driver_refuses_is_an_error_with_its_words(device):
    with pytest.raises(CodegenError, match="undeclared identifier 'nonsense'"):
        device.load(Image("__kernel void f(__global int* a) { a[0] = nonsense; }", ("f",), (0,)))


def test_a_forked_child_is_told_that_the_device_is_not_its_own(device):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            device.check_process()
        except UserError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert "was forked from one that had used the opencl driver" in os.read(reading, 1000).decode()
