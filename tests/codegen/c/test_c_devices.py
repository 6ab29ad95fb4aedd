"""OpenCL-C, run on the CPU, and CUDA-C, compiled: every operation of the IR on every dtype."""

from __future__ import annotations

import re

import pytest
from onnx import TensorProto, helper

import tc
from tc.codegen.c.dialect import CUDA, OPENCL
from tc.codegen.c.launch import emit_launches
from tc.ir.parser import parse_prim_func
from tc.ops.registry import OPS
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops
from tc.schedule.rules import apply_rules
from tc.target import Target
from tests.codegen.c.devices import OpenClPrograms, compile_cuda, cuda_text, needs_nvcc, opencl_context
from tests.codegen.c.programs import assert_equal, on_device, programs
from tests.golden_files import FOLDER, check_text
from tests.ops.kernels import make_prim_func
from tests.ops.test_registry import WITH_LOOPS, assert_same, samples_of

SOME = 9
"""Of so many operations one is enough for every run."""


@pytest.mark.parametrize(("lanes", "every"), [(4, SOME), *(pytest.param(lanes, 1, marks=pytest.mark.slow) for lanes in (1, 4))])
def test_operations_have_the_meaning_of_the_ir_in_opencl(lanes, every):
    found = programs(lanes)[::every]
    funcs = [on_device(program) for program in found]

    compiled = OpenClPrograms(funcs, *opencl_context())

    for program, func in zip(found, funcs, strict=True):
        (actual,) = compiled.run(func, program.arrays)
        assert_equal(program, actual, program.expected())


@needs_nvcc
@pytest.mark.parametrize(
    ("arch", "lanes", "every"),
    [("sm_75", 4, SOME), *(pytest.param(arch, lanes, 1, marks=pytest.mark.slow) for arch in ("sm_80", "sm_90a") for lanes in (1, 4))],
)
def test_operations_are_cuda_without_warnings(arch, lanes, every, tmp_path):
    compile_cuda(cuda_text([on_device(program) for program in programs(lanes)[::every]]), tmp_path, arch)


FEW = ("gather_nd", "hardmax", "scatter_nd", "softmax")
WHOLE = [pytest.param(tuple(WITH_LOOPS[k : k + 10]), marks=pytest.mark.slow) for k in range(0, len(WITH_LOOPS), 10)]


def device_calls(names, target):
    """Operators on their samples, scheduled by the rules for devices."""
    calls = [(OPS[name], arrays, attrs) for name in names for arrays, attrs in samples_of(OPS[name])]
    return calls, [
        finish_loops(apply_rules(simplify_loops(make_prim_func(*call)), target).func, calls=DEVICE_FINISH_CALLS) for call in calls
    ]


@pytest.mark.parametrize("names", [FEW, *WHOLE], ids=lambda names: names[0])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_operators_scheduled_for_devices_compute_the_reference(names):
    context = opencl_context()
    calls, funcs = device_calls(names, Target.parse("opencl:generic"))

    compiled = OpenClPrograms(funcs, *context)

    for func, (op, arrays, attrs) in zip(funcs, calls, strict=True):
        expected = op.run_reference(arrays, op.attrs(attrs))
        actual = compiled.run(func, [a for a in arrays if a is not None])
        for a, e in zip(actual[: len(expected)], expected, strict=True):  # workspaces follow
            assert_same(a, e)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("names", WHOLE, ids=lambda names: names[0])
def test_operators_are_cuda_without_warnings(names, arch, tmp_path):
    _, funcs = device_calls(names, Target.parse(f"cuda:{arch}"))

    compile_cuda(cuda_text(funcs), tmp_path, arch)


DASHES = "# -----"
MOST_LINES = {"attention": 240}
"""What may take more than a page or two of a kernel."""


@pytest.mark.parametrize("path", sorted((FOLDER / "cuda").glob("*.txt")), ids=lambda path: path.stem)
def test_cuda_text(path, update_golden):
    program = path.read_text().partition(DASHES)[0]

    text = emit_launches(parse_prim_func(program), "kernel", CUDA)

    assert len(text.splitlines()) < MOST_LINES.get(path.stem, 150)
    check_text(path, f"{program}{DASHES}\n{text}", update_golden)


@pytest.mark.parametrize("path", sorted((FOLDER / "cuda").glob("*.txt")), ids=lambda path: path.stem)
def test_arrays_of_a_thread_are_aligned_as_the_vectors_that_are_read_of_them(path):
    # Two numbers that a thread keeps were read as one vector of 8 bytes, from where numbers of 4 bytes may lie.
    text = emit_launches(parse_prim_func(path.read_text().partition(DASHES)[0]), "kernel", CUDA)
    arrays = re.findall(r"^ +(?:__align__\((\d+)\) )?f32 (\w+)\[\d+\];$", text, re.MULTILINE)
    declared = {name: int(alignment or 4) for alignment, name in arrays}

    read = [(int(lanes) * 4, name) for lanes, name in re.findall(r"\*\((?:const )?f32x(\d+) \*\)&?(\w+)", text) if name in declared]

    assert read and [(size, name) for size, name in read if declared[name] < size] == []


def test_branches_of_one_condition_that_follow_each_other_are_one():
    statements = "\n".join(f"                if {test} < 5:\n                    B[b, t] = {k}.0" for k, test in enumerate(("t", "t", "b")))
    func = parse_prim_func(
        "@loops\ndef f(A: f32[4, 8], B: f32[4, 8]):\n    outputs(1)\n    for b in bound(4, 'block.x'):\n"
        f"        for t in bound(8, 'thread.x'):\n{statements}\n".replace("                ", "            ")
    )

    text = emit_launches(func, "kernel", CUDA)

    assert re.findall(r"if \((.*)\) \{", text) == ["t < 5", "bx < 5"] and text.index("0.0f") < text.index("1.0f") < text.index("2.0f")


def test_kernels_are_called_after_the_model_and_name_its_nodes():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="scores"), helper.make_node("Softmax", ["h"], ["y"], name="weights")]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [256, 256]) for name in "xwy"}
    graph = helper.make_graph(nodes, "g", [values["x"], values["w"]], [values["y"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    files = tc.lower(model, stage="cuda", target="cuda:sm_80").files()

    texts = [text for name, text in files.items() if name.endswith(".cu")]
    assert len(texts) == 2 and all(len(text.splitlines()) < 150 for text in texts)
    assert "/* computes scores */" in texts[0] and "/* computes weights */" in texts[1]
    assert "tc_matmul" in texts[0] and "tc_softmax" in texts[1]


@pytest.mark.parametrize("dialect", [OPENCL, CUDA], ids=lambda dialect: dialect.name)
def test_threads_that_write_into_one_byte_do_so_by_atomic_operations(dialect):
    # It was read, changed and written back, as if no other thread could have changed it meanwhile.
    (program,) = (each for each in programs(1) if each.name == "cast_i8_u4")

    text = emit_launches(on_device(program), "kernel", dialect)

    assert dialect.atomics[0] and all(f"{name}(word, " in text for name in dialect.atomics)
