"""Programs as graphs of the driver, run in a process whose driver is the fake one; their PTX runs in an interpreter."""

import gc

import numpy as np
from cuda_driver.driver import main
from cuda_driver.interpreted import runs_in
from cuda_driver.module_scenarios import (
    BOOL,
    F32,
    I64,
    PTX,
    device,
    fake,
    fetched,
    gathers,
    on_device,
    onnx_model,
    raised,
    softmaxed,
)
from onnx import helper, numpy_helper

import tc
from tc.errors import DeviceError, InputError
from tc.runtime import cuda_graphs

NODES = [("Softmax", ["x"], ["a"], {"axis": 0}), ("MatMul", ["a", "w"], ["b"], {}), ("Softmax", ["b"], ["y"], {"axis": 0})]


def chain():
    """Three kernels: of x: f32[n, 4] and w: f32[4, 4]."""
    nodes = [helper.make_node(kind, given, made, **attributes) for kind, given, made, attributes in NODES]
    return onnx_model(nodes, [("x", F32, ["n", 4]), ("w", F32, [4, 4])], [("y", F32, ["n", 4])])


def softmax(x):
    exponentials = np.exp(x - x.max(0))
    return exponentials / exponentials.sum(0)


def expected(x, w):
    return softmax(softmax(x) @ w)


def drawn(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((n, 4), np.float32), rng.random((4, 4), np.float32)


def assert_close(found, x, w):
    np.testing.assert_allclose(found, expected(x, w), rtol=1e-5)
    assert not fake.complaints, fake.complaints


def compiled(model=None):
    module = tc.compile(model or chain(), target=PTX)
    fake.clear()
    return module


def calls():
    """Launches of kernels, graphs made, nodes changed, graphs launched."""
    names = ("cuLaunchKernel", "cuGraphInstantiateWithFlags", "cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch")
    found = tuple(fake.count(name) for name in names)
    fake.clear()
    return found


def the_third_call_is_one_launch():
    module, found = compiled(), []

    for seed in range(4):
        x, w = drawn(5, seed)
        assert_close(module(x, w), x, w)
        found.append(calls())

    assert found[0][0] >= 3 and found[0][1:] == (0, 0, 0)
    assert found[1] == (0, 1, 0, 1) and found[2:] == [(0, 0, 0, 1)] * 2
    assert f"graphs: 1, of {found[0][0]} nodes" in str(module.report())


def arrays_elsewhere_are_parameters_of_nodes():
    module, kept, nodes = compiled(), [], 0

    for seed in range(5):
        x, w = drawn(5, seed)
        kept.append((module(on_device(x), on_device(w)), x, w))
        launched, made, changed, graphs = calls()
        nodes = launched or nodes
        assert (launched > 0, made, graphs) == ((True, 0, 0) if seed == 0 else (False, int(seed == 1), 1))
        assert changed == 0 if seed < 2 else 0 < changed < nodes, (seed, changed, nodes)
    for found, x, w in kept:
        assert_close(fetched(found), x, w)


def each_shape_has_a_graph_and_the_oldest_go():
    module = compiled()
    most, cuda_graphs.MOST_GRAPHS = cuda_graphs.MOST_GRAPHS, 3
    sizes = range(1, 6)

    for _ in range(2):
        for n in sizes:
            for _ in range(3):
                x, w = drawn(n, n)
                assert_close(module(x, w), x, w)
    (frame,) = module._frames.values()

    cuda_graphs.MOST_GRAPHS = most

    assert len(frame.memory.graphs._known) == 3 == len(frame.memory.graphs.nodes)
    gc.collect()
    before = fake.library.fake_graphs()
    module.trim()
    del frame
    gc.collect()
    assert fake.library.fake_graphs() == before - 3
    x, w = drawn(3)
    assert_close(module(x, w), x, w)


def a_graph_follows_an_arena_that_grows():
    module = compiled()

    for n in (3, 3, 3, 200, 200, 3, 3, 200):
        x, w = drawn(n, n)
        assert_close(module(x, w), x, w)


def a_graph_is_work_of_the_callers_stream():
    module, queues = compiled(), [device.new_queue() for _ in range(3)]
    kept = []
    arrays = [tuple(on_device(each) for each in drawn(4, k)) for k in range(3)]
    outs = [on_device(np.zeros((4, 4), np.float32)) for _ in range(3)]

    for _ in range(4):
        fake.clear()
        for k, queue in enumerate(queues):
            module(*arrays[k], out=outs[k], stream=queue.stream)
        kept.append(calls())
    for k, queue in enumerate(queues):
        assert_close(fetched(outs[k], queue.stream), *drawn(4, k))

    assert kept[0][0] >= 9 and kept[1:] == [(0, 3, 0, 3), (0, 0, 0, 3), (0, 0, 0, 3)]
    assert len({frame.arena.address for frame in module._frames.values()}) == 3  # none of another stream's


def a_stream_that_its_owner_captures_gets_kernels():
    module = compiled()
    x, w = drawn(5)

    for _ in range(3):
        module(x, w)
    fake.library.fake_capture(1)
    fake.clear()
    found = module(x, w)
    fake.library.fake_capture(0)

    assert calls()[0] >= 3
    assert_close(found, x, w)


def what_the_driver_refuses_as_a_graph_runs_without():
    for function in (b"cuGraphInstantiateWithFlags", b"cuGraphAddKernelNode_v2", b"cuGraphLaunch"):
        module, refused = compiled(), None
        for k in range(4):
            x, w = drawn(5, k)
            if k == 1:
                fake.library.fake_fail_next(function, 801)
            assert_close(module(x, w), x, w)
            refused = calls()
        assert refused[0] >= 3 and refused[3] == 0
        assert f"none, as the driver refused one: CUDA device 0 (Fake-sm_80): a graph ({function.decode()}) failed" in str(module.report())


def an_error_of_a_graph_that_runs_is_raised():
    module = compiled()
    x, w = drawn(5)
    module(x, w), module(x, w)
    fake.run_image = None

    message = raised(DeviceError, module, x, w)
    fake.run_image = runs_in(fake)
    fake.library.fake_revive()
    fake.clear()

    assert "start the process afresh" in message
    assert_close(module(x, w), x, w)


def a_node_on_a_reference_kernel_divides_a_graph():
    nodes = [("Softmax", ["x"], ["a"], {"axis": 0}), ("MatMul", ["a", "x"], ["b"], {}), ("Det", ["b"], ["d"], {}),
             ("Softmax", ["b"], ["c"], {"axis": 0}), ("MatMul", ["c", "b"], ["e"], {}), ("Mul", ["e", "d"], ["y"], {})]  # fmt: skip
    made = [helper.make_node(kind, given, results, **attributes) for kind, given, results, attributes in nodes]
    module = compiled(onnx_model(made, [("x", F32, [3, 3])], [("y", F32, [3, 3])]))
    seen = []

    for seed in range(4):
        x = np.random.default_rng(seed).random((3, 3), np.float32)
        b = softmax(x) @ x
        np.testing.assert_allclose(module(x), (softmax(b) @ b) * np.linalg.det(b), rtol=1e-4, atol=1e-7)
        seen.append(calls())

    assert seen[1] == (0, 2, 0, 2) and seen[2:] == [(0, 0, 0, 2)] * 2, seen
    assert not fake.complaints, fake.complaints


def a_loop_of_known_length_is_one_graph():
    body = helper.make_graph(
        [helper.make_node("Cast", ["k"], ["f"], to=F32), helper.make_node("Softmax", ["v"], ["s"], axis=0),
         helper.make_node("Add", ["s", "f"], ["w"]), helper.make_node("Identity", ["c"], ["go"])],
        "body", [helper.make_tensor_value_info(*each) for each in (("k", I64, []), ("c", BOOL, []), ("v", F32, [5, 2]))],
        [helper.make_tensor_value_info(*each) for each in (("go", BOOL, []), ("w", F32, [5, 2]))],
    )  # fmt: skip
    most, yes = numpy_helper.from_array(np.array(3), "most"), numpy_helper.from_array(np.array(True), "yes")
    loop = helper.make_node("Loop", ["most", "yes", "x"], ["y"], body=body)
    model = onnx_model([loop], [("x", F32, [5, 2])], [("y", F32, [5, 2])], (most, yes))
    module, host = compiled(model), tc.compile(model)

    for seed in range(4):
        x = np.random.default_rng(seed).random((5, 2), np.float32)
        np.testing.assert_allclose(module(x), host(x), rtol=1e-5)
        found = calls()

    assert found == (0, 0, 0, 1), (found, module.report().graphs)
    assert not fake.complaints, fake.complaints


def a_branch_that_sizes_decide_is_part_of_a_graph():
    def branch(kind, name):
        return helper.make_graph([helper.make_node(kind, ["y"], [name])], name, [], [helper.make_tensor_value_info(name, F32, ["n", 4])])

    nodes = [helper.make_node(kind, given, made, **attributes) for kind, given, made, attributes in NODES]
    nodes += [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "zero"], ["rows"])]
    nodes += [helper.make_node("Greater", ["rows", "three"], ["many"])]
    nodes += [helper.make_node("If", ["many"], ["r"], then_branch=branch("Neg", "p"), else_branch=branch("Abs", "q"))]
    literals = [numpy_helper.from_array(np.array(value), name) for value, name in ((0, "zero"), (3, "three"))]
    module = compiled(onnx_model(nodes, [("x", F32, ["n", 4]), ("w", F32, [4, 4])], [("r", F32, ["n", 4])], literals))

    for turn in range(3):
        for n, sign in ((5, -1), (2, 1)):
            x, w = drawn(n, turn)
            np.testing.assert_allclose(module(x, w), sign * expected(x, w), rtol=1e-5)
            found = calls()
    assert found == (0, 0, 0, 1), (found, module.report().graphs)
    assert not fake.complaints, fake.complaints


def what_data_decide_is_no_graph_and_the_report_says_why():
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Add", ["i", "i"], ["y"])]
    module = compiled(onnx_model(nodes, [("x", F32, [3, 4])], [("y", I64, [2, None])]))
    x = np.eye(3, 4, dtype=np.float32)

    for _ in range(3):
        assert np.array_equal(module(x), 2 * np.array(np.nonzero(x)))

    assert calls()[3] == 0 and "graphs: none, as" in str(module.report()) and "decide" in module.report().graphs


def a_fault_in_a_graph_is_raised_however_often_it_ran_since():
    module, queue = compiled(gathers()), device.new_queue()
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    good, wrong = np.array([2, 0]), np.array([0, 9])
    out, table, rows, columns = on_device(np.zeros((2, 4), np.float32)), on_device(x), on_device(good), on_device(good * 0)
    host, both = tc.compile(gathers()), {2: on_device(wrong), 4: on_device(good)}

    for k in range(6):
        if k in both:
            queue.copy(rows.address, both[k].address, good.nbytes)
        module(table, rows, columns, out=out, stream=queue.stream)
    launched = calls()

    assert launched[3] == 5
    assert raised(InputError, module.synchronize) == raised(InputError, host, x, wrong, good * 0)
    module(table, rows, columns, out=out, stream=queue.stream)
    module.synchronize()
    np.testing.assert_allclose(fetched(out, queue.stream), softmaxed(x, good, good * 0), rtol=1e-5)
    assert not fake.complaints, fake.complaints


def caches_that_are_results_and_inputs_stay_on_the_device():
    """A step of decoding: what is known, and one row more."""
    nodes = [helper.make_node("Concat", ["known", "row"], ["next"], axis=0), helper.make_node("ReduceSum", ["next"], ["y"], keepdims=0)]
    module = compiled(onnx_model(nodes, [("known", F32, ["n", 4]), ("row", F32, [1, 4])], [("next", F32, ["m", 4]), ("y", F32, [])]))
    rows = np.random.default_rng(0).random((6, 4), np.float32)
    cache, queue = on_device(rows[:1]), device.new_queue()
    given = [on_device(row[None]) for row in rows]
    fake.clear()

    for row in given[1:]:
        cache, total = module(cache, row, stream=queue.stream)
    copies = [line for line in fake.log if line.startswith("cuMemcpy")]

    assert not copies, copies
    assert np.array_equal(fetched(cache, queue.stream), rows)
    np.testing.assert_allclose(fetched(total, queue.stream), rows.sum(), rtol=1e-5)
    assert not fake.complaints, fake.complaints


if __name__ == "__main__":
    main(globals())
