"""Whole compiled models on a CUDA device, run in a process whose driver is the fake one; their PTX runs in an interpreter."""

import contextlib
import ctypes
import os
import pickle
import threading
import types
import weakref

import numpy as np
from cuda_driver.driver import FakeDriver, main
from cuda_driver.interpreted import runs_in
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.codegen.cuda.device import open_device
from tc.errors import InputError, LimitError, TcError
from tc.frontend.onnx.node_context import ADAPTERS
from tc.ir.dtype import f16, f32
from tc.ir.expr import Var
from tc.ir.graph import TensorConst
from tc.ir.module import IRModule
from tc.ir.parser import parse_module
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.runtime.device_arrays import CUDA, DeviceArray, read_device_array

PTX = "cuda:sm_80,features=+ptx"
SUMS = """
@graph
def main(x: f32[n, 40], y: f32[40]):
    a: f32[n, 40] = mul(x, y)
    b: f32[n, 40] = add(a, x)
    s: f32[n] = sum(b, axes=(1,), keepdims=False)
    return b, s
"""
TWICE = """
@graph
def main(x: f32[n]):
    y: f32[n] = add(x, x)
    z: f32[n] = mul(y, y)
    return y, z
"""
SIX = np.arange(6, dtype=np.float32).reshape(3, 2)
F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
ADAPTERS.pop(("", "Det"))  # so that nodes run on the reference
fake = FakeDriver()
fake.run_image = runs_in(fake)
device = open_device(0)
modules = {}




def compiled(text, target=PTX):
    if (text, target) not in modules:
        modules[text, target] = tc.compile(parse_module(text), target=target)
    fake.clear()
    return modules[text, target]


def on_device(array, stream=None):
    """A copy of an array on the device, for whoever takes arrays by DLPack."""
    block, queue = device.allocate(array.nbytes), device.new_queue()
    queue.upload(block.address, np.ascontiguousarray(array))
    queue.finish()
    return DeviceArray(array.shape, array.dtype, 0, block, lambda stream: None)


def fetched(array, stream=0):
    """What is on the device once a stream's work is done."""
    view = read_device_array(array, 0, stream, "it")
    found, queue = np.empty(view.shape, view.dtype), device.new_queue()
    queue.follow(stream)
    queue.download(found, view.address)
    return found


def raised(kind, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def sums_of(rng, n=3):
    x, y = rng.random((n, 40), np.float32), rng.random(40, np.float32)
    return x, y, x * y + x


def assert_sums(found, x, y, rtol=1e-5):
    b, s = found
    np.testing.assert_allclose(b, x * y + x, rtol=1e-6)
    np.testing.assert_allclose(s, (x * y + x).sum(1), rtol=rtol)
    assert not fake.complaints, fake.complaints


def arrays_of_the_host_go_to_the_device_and_back():
    module, rng = compiled(SUMS), np.random.default_rng(0)

    for n in (3, 7, 1, 0, 3):
        x, y, _ = sums_of(rng, n)
        assert_sums(module(x, y), x, y)


def cuda_c_through_nvcc_gives_the_same():
    x, y, _ = sums_of(np.random.default_rng(1))

    assert_sums(compiled(SUMS, "cuda:sm_80")(x, y), x, y)


def arrays_on_the_device_are_used_in_place():
    module = compiled(SUMS)
    x, y, _ = sums_of(np.random.default_rng(2))
    a, b = on_device(x), on_device(y)
    fake.clear()

    results = module(a, b)
    calls = fake.log
    b_found, s_found = map(fetched, results)

    assert not any(line.startswith(("cuMemcpyHtoD", "cuMemcpyDto")) for line in calls), calls
    assert all(isinstance(each, DeviceArray) for each in results)
    assert results[0].__dlpack_device__() == (CUDA, 0)
    assert_sums((b_found, s_found), x, y)


class Interface:
    """An array that only has `__cuda_array_interface__`."""

    def __init__(self, array, stream):
        self.array = array
        facts = array.__cuda_array_interface__
        self.__cuda_array_interface__ = {**facts, "stream": stream}


def an_array_without_dlpack_is_waited_for_on_its_stream():
    module = compiled(SUMS)
    x, y, _ = sums_of(np.random.default_rng(3))
    source, empty = on_device(x), on_device(np.zeros_like(x))
    other = device.new_queue()
    other.copy(empty.address, source.address, x.nbytes)  # done when somebody waits
    fake.clear()

    found = module(Interface(empty, other.stream), y)

    assert fake.count("cuStreamWaitEvent") == 1
    assert_sums(map(fetched, found), x, y)


def a_call_on_a_stream_does_not_wait():
    module = compiled(SUMS)
    x, y, _ = sums_of(np.random.default_rng(4))
    a, b, queue = on_device(x), on_device(y), device.new_queue()
    module(a, b, stream=queue.stream)
    queue.finish()
    c, d = on_device(x * 0), on_device(np.zeros(3, np.float32))
    fake.clear()

    given = module(a, b, out=[c, d], stream=queue.stream)
    calls, before = fake.log, fake.memory(c.address)[0].any()

    assert not any("Synchronize" in call for call in calls), calls
    assert not before and given[0] is c
    assert_sums((fetched(c, queue.stream), fetched(d, queue.stream)), x, y)


def two_streams_have_two_arenas():
    module, rng = compiled(SUMS), np.random.default_rng(5)
    queues = [device.new_queue() for _ in range(11)]
    inputs = [sums_of(rng, 2 + k % 3)[:2] for k in range(11)]
    arrays = [(on_device(x), on_device(y)) for x, y in inputs]

    found = [module(*each, stream=queue.stream) for each, queue in zip(arrays, queues, strict=True)]
    again = [module(*each, stream=queue.stream) for each, queue in zip(arrays[::-1], queues, strict=True)]
    for queue in queues[::-1]:
        queue.finish()

    for (x, y), results in zip(inputs + inputs[::-1], found + again, strict=True):
        assert_sums(map(fetched, results), x, y)
    assert len(module._frames) <= 9


def larger_sizes_wait_for_smaller_ones_to_be_done():
    module, rng = compiled(SUMS), np.random.default_rng(6)
    queue, kept = device.new_queue(), []

    for n in (2, 5, 9, 3):
        x, y, _ = sums_of(rng, n)
        kept.append((module(on_device(x), on_device(y), stream=queue.stream), x, y))
    queue.finish()

    for results, x, y in kept:
        assert_sums(map(fetched, results), x, y)


def threads_do_not_disturb_each_other():
    module, problems = compiled(SUMS), []

    def work(seed):
        try:
            for n in (1, 4, 2):
                x, y, _ = sums_of(np.random.default_rng(seed), n)
                assert_sums(module(x, y), x, y)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not problems, problems


def two_threads_at_once_have_two_arenas():
    module, meeting, problems, seen = tc.compile(gathers(), target=PTX), threading.Barrier(2), [], []
    real = module._run

    def run(address):
        meeting.wait(20)  # both are inside
        seen.append(module._frames[address].arena.address)
        return real(address)

    def work(seed):
        try:
            x = np.random.default_rng(seed).random((3, 4), np.float32)
            np.testing.assert_allclose(module(x, np.array([2, 0]), np.array([1, 1])), softmaxed(x, [2, 0], [1, 1]), rtol=1e-5)
        except BaseException as error:
            problems.append(error)

    module._run = run
    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not problems and not fake.complaints, (problems, fake.complaints)
    assert len(seen) == 2 and len(set(seen)) == 2


def results_upon_inputs_are_computed_apart():
    module = compiled(TWICE)
    x = np.arange(50, dtype=np.float32)
    a, z = on_device(x), on_device(x)

    module(a, out=[a, z])

    assert np.array_equal(fetched(a), 2 * x) and np.array_equal(fetched(z), 4 * x * x) and not fake.complaints
    assert "overlap" in raised(InputError, module, on_device(x), out=[z, z])


def arrays_that_begin_anywhere_are_taken():
    module = compiled(TWICE)
    x = np.arange(51, dtype=np.float32)
    a, y, z = on_device(x), on_device(x), on_device(x)

    def part(array):
        shifted = types.SimpleNamespace(address=array.address + 4)
        return DeviceArray((50,), x.dtype, 0, shifted, lambda stream: None)

    module(part(a), out=[part(y), part(z)])

    assert np.array_equal(fetched(y)[1:], 2 * x[1:]) and np.array_equal(fetched(z)[1:], 4 * x[1:] ** 2)
    assert fetched(y)[0] == 0 and not fake.complaints


def wrong_arrays_are_refused_in_words():
    module = compiled(SUMS)
    x, y, _ = sums_of(np.random.default_rng(8))
    b = on_device(y)
    elsewhere = DeviceArray(x.shape, x.dtype, 1, None, lambda stream: None)

    assert 'input "x": dtype is f64, but must be f32' in raised(InputError, module, on_device(x.astype(np.float64)), b)
    assert 'input "x": dim 1 is 41, but must be 40' in raised(InputError, module, on_device(np.zeros((3, 41), np.float32)), b)
    assert 'input "x": rank is 1, but must be 2' in raised(InputError, module, on_device(x[0]), b)
    assert "lies on CUDA device 1, but the model runs on CUDA device 0" in raised(InputError, module, elsewhere, b)
    assert "stream is a str" in raised(InputError, module, x, y, stream="mine")
    out = [on_device(x), on_device(np.zeros(4, np.float32))]
    assert "f32[4], but must be f32[3]" in raised(InputError, module, on_device(x), b, out=out)
    assert_sums(module(x, y), x, y)


def onnx_model(nodes, inputs, outputs, initializers=()):
    values = [[helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in some] for some in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *values, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def an_index_out_of_range_is_the_same_error_as_on_the_host():
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], name="pick")]
    model = onnx_model(nodes, [("x", F32, ["n", 4]), ("i", I64, ["k"])], [("y", F32, ["k", 4])])
    x, host = np.arange(12, dtype=np.float32).reshape(3, 4), tc.compile(model)
    module = tc.compile(model, target=PTX)
    wrong = np.array([2, 7, -1])

    assert np.array_equal(module(x, np.array([2, -3])), x[[2, 0]])
    assert raised(InputError, module, x, wrong) == raised(InputError, host, x, wrong)
    assert np.array_equal(module(x, np.array([1])), x[[1]])
    assert np.array_equal(fetched(module(on_device(x), on_device(np.array([2, -3])))), x[[2, 0]])
    assert not fake.complaints


def gathers():
    """Rows of x: f32[n, 4] by i, and of those, softmaxed, by j: two kernels with checks."""
    nodes = [helper.make_node("Gather", ["x", "i"], ["a"], name="first"), helper.make_node("Softmax", ["a"], ["s"], axis=0)]
    nodes.append(helper.make_node("Gather", ["s", "j"], ["y"], name="second"))
    return onnx_model(nodes, [("x", F32, ["n", 4]), ("i", I64, ["k"]), ("j", I64, ["m"])], [("y", F32, ["m", 4])])


def softmaxed(x, i, j):
    exponentials = np.exp(x[i] - x[i].max(0))
    return (exponentials / exponentials.sum(0))[j]


def a_call_whose_results_stay_does_not_wait_to_check_indices():
    module, queue = tc.compile(gathers(), target=PTX), device.new_queue()
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = [on_device(each) for each in (x, np.array([2, 0]), np.array([1, 1, 0]))]
    module(*arrays, stream=queue.stream)
    module.synchronize()
    fake.clear()

    found = module(*arrays, stream=queue.stream)

    assert not any("Synchronize" in call for call in fake.log), fake.log
    np.testing.assert_allclose(fetched(found, queue.stream), softmaxed(x, [2, 0], [1, 1, 0]), rtol=1e-5)
    assert len(module.report().kernels) > 1 and not fake.complaints


def an_index_out_of_range_is_raised_when_somebody_waits():
    model, queue = gathers(), device.new_queue()
    module, host = tc.compile(model, target=PTX), tc.compile(model)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    good, first, second = np.array([2, 0]), np.array([0, 9]), np.array([-3, 1])
    there = {id(each): on_device(each) for each in (x, good, first, second)}

    kept = []  # giving memory back waits

    def started(*arrays):
        kept.append(module(*(there[id(each)] for each in arrays), stream=queue.stream))

    for wrong in ((x, first, good), (x, good, second), (x, first, second)):
        expected = raised(InputError, host, *wrong)
        started(*wrong)
        assert raised(InputError, module.synchronize) == expected
        module.synchronize()  # which has nothing to say any more
        started(*wrong)
        started(x, second, second)  # the record stays that of the first
        started(x, good, good)
        device.finish()
        assert raised(InputError, started, x, good, good) == expected
        assert raised(InputError, module, *wrong) == expected
        np.testing.assert_allclose(module(x, good, np.array([1, 0])), softmaxed(x, good, [1, 0]), rtol=1e-5)
    assert not fake.complaints, fake.complaints


def an_index_out_of_range_is_raised_before_the_host_looks_at_what_follows():
    """The size of a result, a condition and a reference kernel's argument, made from what was not looked up."""
    index = helper.make_node("Gather", ["x", "i"], ["v"], name="pick")
    size = [helper.make_node("ConstantOfShape", ["v"], ["y"])]
    reference = [helper.make_node("Cast", ["v"], ["f"], to=F32), helper.make_node("Det", ["f"], ["y"])]
    for then, shape, result in ((size, ["k"], (F32, [None])), (reference, ["k", "k"], (F32, []))):
        model = onnx_model([index, *then], [("x", I64, ["n"]), ("i", I64, shape)], [("y", *result)])
        module, host = tc.compile(model, target=PTX), tc.compile(model)
        x, wrong = np.arange(2, 5), np.full([1] * len(shape), 17)

        assert raised(InputError, module, x, wrong) == raised(InputError, host, x, wrong)
        assert np.array_equal(module(x, wrong * 0), host(x, wrong * 0))
    assert not fake.complaints, fake.complaints


def sizes_from_small_inputs_are_read_where_the_caller_has_them():
    nodes = [helper.make_node("Slice", ["x", "a", "b"], ["y"])]
    module = tc.compile(onnx_model(nodes, [("x", F32, ["n", 4]), ("a", I64, [1]), ("b", I64, [1])], [("y", F32, [None, 4])]), target=PTX)
    x, queue = np.random.default_rng(0).random((9, 4), np.float32), device.new_queue()
    path = os.path.join(os.environ["TC_TEST_FOLDER"], "sizes.tcm")
    module.save(path)
    again = tc.load(path)

    for start, end in ((2, 7), (-3, 100), (5, 2)):
        a, b = np.array([start]), np.array([end])
        there = on_device(x)
        fake.clear()
        found = module(there, a, b, stream=queue.stream)
        launches, waits = fake.count("cuLaunchKernel"), fake.count("cuMemcpyDtoHAsync_v2")
        assert launches <= 1 and not waits, fake.log
        assert np.array_equal(fetched(found, queue.stream), x[start:end])
        assert np.array_equal(fetched(module(there, on_device(a), on_device(b))), x[start:end])
        assert np.array_equal(again(x, a, b), x[start:end])
    assert not fake.complaints, fake.complaints


def results_whose_sizes_data_decide_stay_on_the_device():
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Add", ["i", "i"], ["y"])]
    module = tc.compile(onnx_model(nodes, [("x", F32, [3, 4])], [("y", I64, [2, None])]), target=PTX)
    before = fake.library.fake_in_use()

    for seed in range(3):
        x = (np.random.default_rng(seed).random((3, 4)) > 0.5).astype(np.float32)
        assert np.array_equal(module(x), 2 * np.array(np.nonzero(x)))
        assert np.array_equal(fetched(module(on_device(x))), 2 * np.array(np.nonzero(x)))
    assert np.array_equal(module(np.zeros((3, 4), np.float32)), np.zeros((2, 0)))
    module.trim()

    assert fake.library.fake_in_use() <= before and not fake.complaints


def branches_and_loops_ask_the_device():
    steps = [("Add", ["v", "v"], ["w"], {}), ("ReduceMax", ["w"], ["m"], {"keepdims": 0}), ("Less", ["m", "limit"], ["go"], {})]
    body = helper.make_graph(
        [helper.make_node(kind, given, made, **attributes) for kind, given, made, attributes in steps],
        "body", [helper.make_tensor_value_info(*each) for each in (("k", I64, []), ("c", BOOL, []), ("v", F32, [5]))],
        [helper.make_tensor_value_info(*each) for each in (("go", BOOL, []), ("w", F32, [5]))],
    )  # fmt: skip
    limit, yes, most = (numpy_helper.from_array(np.array(v), n) for v, n in ((np.float32(100), "limit"), (True, "yes"), (50, "most")))
    nodes = [helper.make_node("Loop", ["most", "yes", "x"], ["y"], body=body)]
    module = tc.compile(onnx_model(nodes, [("x", F32, [5])], [("y", F32, [5])], (limit, yes, most)), target=PTX)
    x = np.arange(5, dtype=np.float32)

    assert np.array_equal(module(x), x * 32) and not fake.complaints


def nodes_on_reference_kernels_get_what_the_device_has():
    nodes = [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Det", ["a"], ["d"]), helper.make_node("Neg", ["d"], ["y"])]
    module = tc.compile(onnx_model(nodes, [("x", F32, [3, 3])], [("y", F32, [])]), target=PTX)
    x = np.random.default_rng(0).random((3, 3), np.float32)

    np.testing.assert_allclose(module(x), -np.linalg.det(2 * x), rtol=1e-5)
    np.testing.assert_allclose(fetched(module(on_device(x))), -np.linalg.det(2 * x), rtol=1e-5)
    assert not fake.complaints


def strided_arrays_are_refused_or_made_dense():
    module = compiled(TWICE)

    class Strided:
        def __init__(self, array):
            self.array = array
            self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "shape": (10,), "strides": (8,)}

    class Dense(Strided):
        def contiguous(self):
            return on_device(np.arange(10, dtype=np.float32) * 2)

    a = on_device(np.arange(20, dtype=np.float32))

    assert 'input "x" is not C-contiguous' in raised(InputError, module, Strided(a))
    assert np.array_equal(fetched(module(Dense(a))[0]), np.arange(10) * 4)


def results_are_freed_with_whoever_took_them():
    module = compiled(TWICE)
    x = on_device(np.arange(50, dtype=np.float32))
    before = fake.library.fake_in_use()

    y, z = module(x)
    capsules = [y.__dlpack__(stream=1), z.__dlpack__(stream=1)]
    taken = weakref.ref(y)
    del y, z
    held = fake.library.fake_in_use() - before
    capsules.clear()

    assert taken() is None and held >= 400
    assert fake.library.fake_in_use() - before <= held - 400
    assert not fake.complaints


def trim_gives_memory_back():
    module = tc.compile(parse_module(SUMS), target=PTX)
    used = fake.library.fake_in_use()
    x, y, _ = sums_of(np.random.default_rng(9), 50)

    module(x, y)
    more = fake.library.fake_in_use()
    module.trim()

    assert more > used and fake.library.fake_in_use() == used and fake.count("cuMemPoolTrimTo") == 1
    assert_sums(module(x, y), x, y)


def out_of_memory_says_what_was_asked():
    module = compiled(TWICE)
    fake.library.fake_set_capacity(ctypes.c_uint64(1 << 22))

    message = raised(LimitError, module, np.zeros(1 << 20, np.float32))
    fake.library.fake_set_capacity(ctypes.c_uint64(1 << 30))

    assert "has no memory for 4194304 bytes" in message


def out_of_memory_says_what_the_plan_needs():
    nodes = [helper.make_node("Softmax", ["x"], ["a"], axis=0), helper.make_node("MatMul", ["a", "w"], ["b"])]
    nodes += [helper.make_node("Softmax", ["b"], ["c"], axis=0), helper.make_node("ReduceSum", ["c"], ["y"], keepdims=0)]
    weights = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    module = tc.compile(onnx_model(nodes, [("x", F32, ["n", 4])], [("y", F32, [])], (weights,)), target=PTX)
    n = 30000
    fake.library.fake_set_capacity(ctypes.c_uint64(fake.library.fake_in_use() + 600000))
    needed = module.peak_bytes(n=n) - 4

    message = raised(LimitError, module, np.zeros((n, 4), np.float32))
    fake.library.fake_set_capacity(ctypes.c_uint64(1 << 30))

    assert f"needs {needed} bytes for values in between, beside 64 bytes of constants" in message, (message, needed)
    np.testing.assert_allclose(module(np.ones((5, 4), np.float32)), 4.0, rtol=1e-5)


def the_smallest_call_works_when_there_is_memory_again():
    module = compiled(TWICE)
    assert np.array_equal(module(np.ones(5, np.float32))[0], [2.0] * 5)


def a_module_is_saved_and_pickled():
    module = compiled(TWICE)
    path, x = os.path.join(os.environ["TC_TEST_FOLDER"], "m.tcm"), np.arange(5, dtype=np.float32)

    module.save(path)

    for again in (tc.load(path), pickle.loads(pickle.dumps(module))):
        assert np.array_equal(again(x)[1], 4 * x * x)


def a_call_in_a_forked_child_is_an_error_in_words():
    module = compiled(TWICE)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.write(writing, raised(TcError, module, np.ones(5, np.float32)).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert "does not work in the child" in os.read(reading, 1000).decode()
    assert np.array_equal(module(np.ones(5, np.float32))[0], [2.0] * 5)


def a_kernel_that_fails_is_an_error_and_not_a_number():
    module = compiled(TWICE)
    fake.library.fake_fail_next(b"cuLaunchKernel", 719)

    message = raised(TcError, module, np.ones(5, np.float32))

    assert "a launch failed: CUDA_ERROR_LAUNCH_FAILED (719)" in message and "start the process afresh" in message
    assert np.array_equal(module(np.ones(5, np.float32))[0], [2.0] * 5)


def a_loop_whose_condition_cannot_be_computed_ends_with_an_error():
    """The host read the same True for ever."""
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "v"], ["w"]), helper.make_node("Less", ["w", "limit"], ["go"])],
        "body", [helper.make_tensor_value_info(*each) for each in (("k", I64, []), ("c", BOOL, []), ("v", F32, []))],
        [helper.make_tensor_value_info(*each) for each in (("go", BOOL, []), ("w", F32, []))],
    )  # fmt: skip
    constants = [numpy_helper.from_array(np.array(v), n) for v, n in ((np.float32(100), "limit"), (True, "yes"))]
    nodes = [helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)]
    module = tc.compile(onnx_model(nodes, [("x", F32, [])], [("y", F32, [])], constants), target=PTX)
    fake.library.fake_fail_next(b"cuLaunchKernel", 700)

    assert "a launch failed" in raised(TcError, module, np.float32(1))
    assert module(np.float32(1)) == 128


def convolutions_on_blocks_of_channels_run_by_matrix_instructions():
    rng, n = np.random.default_rng(4), Var("n")
    builder = GraphBuilder()
    value = builder.param("x", tensor_type((n, 1, 6, 5, 32), f16))
    layers = (((2, 1, 3, 3, 32, 32), 2, 32, False), ((2, 1, 3, 3, 32), 1, 40, True), ((1, 2, 1, 1, 32, 32), 1, 40, False))
    for shape, step, channels, depthwise in layers:
        weights = [rng.integers(-1, 2, dims).astype(np.float16) for dims in (shape, (shape[0], 32))]
        sizes = {"strides": (step, step), "pads": (shape[2] // 2,) * 4, "dilations": (1, 1), "in_channels": channels, "in_block": 32}
        value = builder.call("conv_blocked", value, *(TensorConst(array, "w") for array in weights), depthwise=depthwise, **sizes)
    module = IRModule((builder.function("main", [value]),))
    texts = tc.lower(module, "ptx", target=PTX)
    assert sum("mma.sync" in texts.as_text(kernel) for kernel in texts.kernels) == 2
    on_device, host = tc.compile(module, target=PTX), tc.compile(module)
    for batch in (1, 2, 0):
        x = rng.integers(-1, 2, (batch, 1, 6, 5, 32)).astype(np.float16)
        np.testing.assert_array_equal(on_device(x), host(x))


def rows_of_any_size_are_stacked_by_loops():
    read = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("i", I64), ("on", BOOL), ("held", F32))]
    given = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("again", BOOL), ("next", F32), ("row", F32))]
    body_nodes = [
        helper.make_node("Identity", ["on"], ["again"]),
        helper.make_node("Add", ["held", "step"], ["next"]),
        helper.make_node("Mul", ["next", "held"], ["row"]),
    ]
    body = helper.make_graph(body_nodes, "body", read, given)
    nodes = [helper.make_node("Loop", ["trips", "yes", "x"], ["last", "rows"], body=body)]
    constants = [numpy_helper.from_array(np.array(v), n) for v, n in ((np.float32(1), "step"), (True, "yes"))]
    for shape in ([3, 2], ["n", 8], [8, "n"]):
        inputs = [("x", F32, shape), ("trips", I64, [])]
        module = tc.compile(onnx_model(nodes, inputs, [("rows", F32, ["t", *shape])], constants), target=PTX)
        for n in (1, 2, 3, 8):
            x = np.arange(8 * n, dtype=np.float32).reshape([n if dim == "n" else dim for dim in shape]) if "n" in shape else SIX
            held = [x + k for k in range(5)]
            expected = np.stack([a * b for a, b in zip(held[1:], held, strict=False)])
            np.testing.assert_array_equal(module(x, np.int64(4)), expected)


def what_a_thread_works_in_may_be_of_any_size():
    rng, n = np.random.default_rng(5), Var("n")
    builder = GraphBuilder()
    found = builder.call("determinant", builder.param("x", tensor_type((3, n, n), f32)))
    module = tc.compile(IRModule((builder.function("main", [found]),)), target=PTX)

    for size in (1, 2, 5, 17, 0):
        x = rng.standard_normal((3, size, size)).astype(np.float32)
        np.testing.assert_allclose(module(x), np.linalg.det(x.astype(np.float64)), rtol=1e-3)


if __name__ == "__main__":
    main(globals())
