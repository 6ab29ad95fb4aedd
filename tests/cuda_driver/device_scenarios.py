"""What happens on a CUDA device, run in a process whose driver is the fake one. Each function is a test of `test_cuda_device.py`."""

import ctypes
import os
import threading

import numpy as np
from cuda_driver.driver import FakeDriver, main

from tc.codegen.cuda.calls import CALLS
from tc.codegen.cuda.device import open_device
from tc.codegen.device_library import load_kernels
from tc.codegen.llvm.host_stub import Image, emit_host_stub
from tc.codegen.llvm.jit import compile_object
from tc.errors import CodegenError, DeviceError, LimitError, UserError
from tc.ir.parser import parse_prim_func

SCALED = """
@loops
def f(A: f32[n], B: f32[n], n: i64):
    outputs(1)
    promise(n, 0, None, 1)
    for k in range(2):
        for b in bound((n + 63) // 64, 'block.x'):
            for t in bound(64, 'thread.x'):
                if b * 64 + t < n:
                    B[b * 64 + t] = A[b * 64 + t] * 2.0 + cast(k, f32)
"""
PTX = """
.version 7.0
.target sm_{arch}
.address_size 64
.visible .entry f_0(.param .u64 a, .param .u64 b, .param .u64 n, .param .u64 k)
{{
{shared}    ret;
}}
"""
OPTIONS = "--gpu-architecture=sm_80"


def ptx(arch=80, shared=""):
    return PTX.format(arch=arch, shared=shared)


def scaled(grid, block, a, b, n, k):
    assert grid == ((n + 63) // 64, 1, 1) and block == (64, 1, 1)
    b.view(np.float32)[:n] = a.view(np.float32)[:n] * 2 + k


def started():
    device = open_device(0)
    fake = FakeDriver()
    fake.kernels["f_0"] = scaled
    fake.clear()
    return device, fake


def compiled(device, image):
    stub = emit_host_stub(parse_prim_func(SCALED), "f", image, CALLS)
    library = load_kernels([compile_object(stub)], device)
    return library, ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(library.address("f"))


def raised(kind, function, *arguments):
    try:
        function(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")



def launches_take_their_arguments_and_run_in_order():
    device, fake = started()
    _library, call = compiled(device, Image(ptx(), ("f_0",), (0,), OPTIONS))
    queue, x = device.new_queue(), np.arange(100, dtype=np.float32)
    a, b = device.allocate(x.nbytes), device.allocate(x.nbytes)
    fake.clear()

    queue.upload(a.address, x)
    call(a.address, b.address, 100, queue.address)
    call(a.address, b.address, 0, queue.address)
    before = bytes(fake.memory(b.address)[0])
    found = np.empty_like(x)
    queue.download(found, b.address)

    assert set(before) == {0xCD}  # nothing ran before somebody waited
    assert np.array_equal(found, x * 2 + 1)
    assert fake.count("cuLaunchKernel") == 2 and fake.count("cuStreamSynchronize") == 1
    assert not fake.complaints, fake.complaints


def a_caller_may_change_an_array_that_was_uploaded():
    device, fake = started()
    queue, x = device.new_queue(), np.arange(10)
    a, found = device.allocate(x.nbytes), np.empty(10, np.int64)

    queue.upload(a.address, x)
    x[:] = -1
    queue.download(found, a.address)

    assert list(found) == list(range(10)) and not fake.complaints


def the_context_of_the_calling_thread_is_put_back():
    device, fake = started()
    library, queue = fake.library, device.new_queue()
    other, context = ctypes.c_void_p(), ctypes.c_void_p()
    assert not library.cuDevicePrimaryCtxRetain(ctypes.byref(other), 1)
    seen = []

    def work():
        library.cuCtxPushCurrent_v2(other)
        queue.finish()
        library.cuCtxGetCurrent(ctypes.byref(context))
        seen.append((context.value, library.fake_depth()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with queue.current():
        fake.clear()
        queue.finish()
        inside = fake.log

    assert seen == [(other.value, 1)]
    assert inside == ["cuStreamSynchronize"]  # no context was pushed where it is current
    assert library.fake_depth() == 0 and not fake.complaints, fake.complaints


def memory_is_given_back_when_all_work_is_done():
    device, fake = started()
    _library, call = compiled(device, Image(ptx(), ("f_0",), (0,), OPTIONS))
    queue = device.new_queue()
    a, b = device.allocate(400), device.allocate(400)
    used = fake.library.fake_in_use()

    queue.upload(a.address, np.zeros(100, np.float32))
    call(a.address, b.address, 100, queue.address)
    del a, b
    freed = fake.library.fake_in_use()
    queue.finish()

    assert used - freed == 800
    assert not fake.complaints, fake.complaints


def memory_that_is_not_there_is_a_limit_with_what_was_asked():
    device, fake = started()

    message = raised(LimitError, device.allocate, 3 << 30)

    assert f"no memory for {3 << 30} bytes" in message and f"of {1 << 30} bytes are free" in message
    assert not fake.complaints


def what_the_driver_refuses_is_an_error_that_names_the_step():
    device, fake = started()
    _library, call = compiled(device, Image(ptx(), ("f_0",), (0,), OPTIONS))
    queue, a = device.new_queue(), device.allocate(400)

    fake.library.fake_fail_next(b"cuLaunchKernel", 701)
    call(a.address, a.address, 100, queue.address)
    message = raised(DeviceError, queue.finish)
    queue.finish()

    assert "CUDA device 0 (Fake-sm_80): a launch failed: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701)" in message


def too_many_blocks_are_a_limit():
    device, fake = started()
    _library, call = compiled(device, Image(ptx(), ("f_0",), (0,), OPTIONS))
    queue, a = device.new_queue(), device.allocate(400)
    fake.clear()

    call(a.address, a.address, 1 << 40, queue.address)

    assert "more blocks than devices take" in raised(LimitError, queue.finish)
    assert fake.count("cuLaunchKernel") == 0


def shared_memory_beyond_the_usual_is_asked_for():
    device, fake = started()
    dynamic = ptx(shared="")
    static = ptx(shared="    .shared .align 16 .b8 S[40000];\n")

    big = device.load(Image(dynamic, ("f_0",), (100_000,), OPTIONS))
    asked = [line for line in fake.log if "attribute" in line]
    small = device.load(Image(static, ("f_0",), (40_000,), OPTIONS))
    message = raised(LimitError, device.load, Image(dynamic, ("f_0",), (200_000,), OPTIONS))

    assert big.handles[0][1] == 100_000 and asked == ["  attribute 8 = 100000"]
    assert small.handles[0][1] == 0
    assert "f_0 needs 200000 bytes of shared memory for a block" in message and "has 166912" in message


def an_image_of_another_architecture_is_refused_in_words():
    device, _fake = started()

    newer = raised(DeviceError, device.load, Image(ptx(90), ("f_0",), (0,), "--gpu-architecture=sm_90a"))
    device.load(Image(ptx(75), ("f_0",), (0,), "--gpu-architecture=sm_75"))

    assert "compiled for sm_90a" in newer and "is sm_80" in newer and "'cuda:sm_80'" in newer


def text_that_the_driver_refuses_is_an_error_with_its_words():
    device, _fake = started()

    message = raised(CodegenError, device.load, Image(ptx(86).replace("86", "89"), ("f_0",), (0,), OPTIONS))

    assert "ptxas fatal: no such SM" in message


def a_forked_child_is_told():
    device, _fake = started()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, raised(UserError, device.check_process).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert "which does not work in the child" in os.read(reading, 1000).decode()


def a_device_that_is_not_there_is_named():
    started()

    assert "there is no device 7" in raised(UserError, open_device, 7)


def a_device_without_pools_is_refused():
    assert "has no memory pools" in raised(DeviceError, open_device, 0)


def a_driver_that_does_not_start_is_an_error_in_words():
    assert "the driver does not start (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)" in raised(UserError, open_device, 0)


if __name__ == "__main__":
    main(globals())
