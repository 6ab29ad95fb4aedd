"""Whole models through the public interface."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest

import tc
from tc.compiler import run_stages
from tc.demo import MODEL_PATH, as_model_input, load_heldout
from tc.errors import InputError, ModelError, UserError
from tc.ir.expr import Var, equal
from tc.ir.module import IRModule
from tc.ir.node import replace, walk
from tc.ir.parser import parse_module
from tc.target import native_target

FLOAT = onnx.TensorProto.FLOAT


def model_of(nodes: list, inputs: dict, outputs: dict, constants: dict | None = None) -> onnx.ModelProto:
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info(n, FLOAT, s) for n, s in inputs.items()],
        [oh.make_tensor_value_info(n, FLOAT, s) for n, s in outputs.items()],
        [onnx.numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9)


def affine(rows: int | str = "n") -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((8, 5)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    nodes = [
        oh.make_node("MatMul", ["x", "w"], ["h"], "product"),
        oh.make_node("Add", ["h", "b"], ["s"], "shift"),
        oh.make_node("Relu", ["s"], ["y"], "clamp"),
    ]
    return model_of(nodes, {"x": [rows, 8]}, {"y": [rows, 5]}, {"w": w, "b": b})


def expected_affine(x: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((8, 5)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    return np.maximum(x @ w + b, 0)


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 16, 33, 100])
def test_one_module_serves_every_size(rows: int) -> None:
    module = tc.compile(affine())
    x = np.random.default_rng(1).standard_normal((rows, 8)).astype(np.float32)

    y = module(x)

    assert y.shape == (rows, 5)
    np.testing.assert_allclose(y, expected_affine(x), rtol=1e-5, atol=1e-5)


def test_the_same_bits_from_one_thread_and_two_and_every_time() -> None:
    images, _ = load_heldout()
    x = as_model_input(images)[:64]
    one, two = tc.compile(str(MODEL_PATH), threads=1), tc.compile(str(MODEL_PATH), threads=2)
    first = one(x)

    assert all(np.array_equal(first, two(x)) for _ in range(20))


def test_the_compiled_model_agrees_with_the_interpreter() -> None:
    images, _ = load_heldout()
    x = as_model_input(images)[:8]

    compiled = tc.compile(str(MODEL_PATH)).run({"image": x})
    reference = tc.interpret(str(MODEL_PATH), {"image": x})

    for name, value in reference.items():
        np.testing.assert_allclose(compiled[name], value, rtol=1e-4, atol=1e-5)


def test_nan_is_computed_with() -> None:
    module = tc.compile(affine())
    x = np.full((3, 8), np.nan, np.float32)

    assert np.isnan(module(x)).all()


def test_results_go_into_given_buffers() -> None:
    module = tc.compile(affine())
    x = np.ones((4, 8), np.float32)
    out = np.empty((4, 5), np.float32)

    result = module(x, out=out)

    assert result is out
    np.testing.assert_allclose(out, expected_affine(x), rtol=1e-5)


def test_strided_inputs_are_copied_not_misread() -> None:
    module = tc.compile(affine())
    wide = np.random.default_rng(2).standard_normal((6, 16)).astype(np.float32)

    np.testing.assert_allclose(module(wide[:, ::2]), expected_affine(wide[:, ::2]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros((2, 7), np.float32), "dim 1 is 7, but must be 8"),
        (np.zeros((2, 8), np.float64), "dtype is f64, but must be f32"),
        (np.zeros((2,), np.float32), "rank is 1, but must be 2"),
        ("text", "must be a numpy array"),
    ],
)
def test_arrays_that_break_the_signature_are_refused(x: object, words: str) -> None:
    module = tc.compile(affine())

    with pytest.raises(InputError, match=words):
        module(x)


def test_promises_about_dims_are_checked() -> None:
    module = tc.compile(affine(), dims={"n": tc.Dim(2, 64, 2)})

    with pytest.raises(InputError, match=r"dim n is 66: promised 2\.\.64"):
        module(np.zeros((66, 8), np.float32))
    with pytest.raises(InputError, match="multiple of 2"):
        module(np.zeros((3, 8), np.float32))
    assert module(np.zeros((4, 8), np.float32)).shape == (4, 5)


def test_dims_that_must_agree_are_checked() -> None:
    nodes = [oh.make_node("Add", ["a", "b"], ["y"])]
    module = tc.compile(model_of(nodes, {"a": ["n", 3], "b": ["n", 3]}, {"y": ["n", 3]}))

    with pytest.raises(InputError, match='input "b": dim 0 is 5'):
        module(np.zeros((4, 3), np.float32), np.zeros((5, 3), np.float32))


def test_unknown_and_missing_inputs_are_named() -> None:
    module = tc.compile(affine())

    with pytest.raises(InputError, match='no input "z"'):
        module.run({"z": np.zeros((1, 8), np.float32)})
    with pytest.raises(InputError, match='input "x" is missing'):
        module.run({})


def test_calls_from_many_threads_are_independent() -> None:
    module = tc.compile(affine())
    failures: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            x = rng.standard_normal((rng.integers(1, 40), 8)).astype(np.float32)
            if not np.allclose(module(x), expected_affine(x), rtol=1e-4, atol=1e-4):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures


def test_a_saved_module_computes_the_same(tmp_path: Path) -> None:
    module = tc.compile(affine())
    module.save(tmp_path / "model.tcm")

    loaded = tc.load(tmp_path / "model.tcm")

    x = np.random.default_rng(4).standard_normal((9, 8)).astype(np.float32)
    assert np.array_equal(loaded(x), module(x))
    assert loaded.inputs == module.inputs
    assert loaded.peak_bytes(n=9) == module.peak_bytes(n=9)


@pytest.mark.parametrize("cut", [0, 10, 100, -1])
def test_a_damaged_module_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "model.tcm"
    tc.compile(affine()).save(path)
    data = path.read_bytes()
    path.write_bytes(data[:cut] if cut != -1 else data[:-1] + bytes([data[-1] ^ 1]))

    with pytest.raises(ModelError):
        tc.load(path)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(UserError, match="threads is 0"):
        tc.compile(affine(), threads=0)
    with pytest.raises(UserError, match="numerics"):
        tc.compile(affine(), numerics="sloppy")
    for overridden in (5, "x", [1]):
        with pytest.raises(UserError, match=r"overridden is .* a list of names"):
            tc.compile(affine(), overridden=overridden)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="passes is None"):
        tc.compile(affine(), passes=None)  # type: ignore[arg-type]


def test_a_broken_condition_is_told_with_the_values_of_its_dims(tmp_path: Path) -> None:
    text = """
@graph
def main(x: f32[n, 8], y: f32[m, 8], z: f32[n + 1]):
    a: f32[n, 8] = add(x, y)
    return a
"""
    module = parse_module(text)
    n, m = (next(v for v in walk(p.type) if isinstance(v, Var)) for p in module.main.params[:2])
    carried = (equal(n, m), "dims n and m must be equal")
    module = IRModule((replace(module.main, attrs=(("requirements", (carried,)),)),), module.entry)
    compiled = tc.compile(module)
    compiled.save(tmp_path / "m.tcm")
    x, y, z = np.ones((3, 8), np.float32), np.ones((4, 8), np.float32), np.ones(4, np.float32)

    for again in (compiled, tc.load(tmp_path / "m.tcm")):
        with pytest.raises(InputError, match=r"dims n and m must be equal \(here n = 3, m = 4\)"):
            again(x, y, z)
        with pytest.raises(InputError, match=r'input "z": dim 0 is 4, but must be n \+ 1 \(here n = 2\)'):
            again(x[:2], y[:2], z)


def test_memory_is_a_formula_over_the_dims() -> None:
    module = tc.compile(str(MODEL_PATH))

    assert module.peak_bytes(batch=64) > 8 * module.peak_bytes(batch=4)
    with pytest.raises(InputError, match="batch"):
        module.peak_bytes()


def test_the_arena_is_far_smaller_than_all_values() -> None:
    layers = 12
    nodes = [oh.make_node("MatMul", [f"v{k}", "w"], [f"v{k + 1}"]) for k in range(layers)]
    w = np.eye(256, dtype=np.float32)
    stages = run_stages(
        model_of(nodes, {"v0": [64, 256]}, {f"v{layers}": [64, 256]}, {"w": w}), native_target()
    )

    arena = int(stages.plan.arena_bytes)

    assert arena <= 0.25 * (layers - 1) * 64 * 256 * 4


def test_explain_and_report_name_the_models_nodes() -> None:
    module = tc.compile(affine())

    assert "clamp" in module.explain("product") and "contraction" in module.explain("product")
    assert "product" in str(module.report())
    with pytest.raises(InputError, match="no node"):
        module.explain("nothing")


@pytest.mark.parametrize("stage", ["graph", "loops", "scheduled", "final", "llvm", "asm"])
def test_every_stage_has_text(stage: str) -> None:
    text = tc.lower(affine(), stage).as_text()

    assert "matmul" in text or "tc_" in text


def test_no_matter_how_often_shapes_change_memory_stays() -> None:
    module = tc.compile(affine())
    rng = np.random.default_rng(6)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    for _ in range(200):
        module(np.zeros((int(rng.integers(1, 200)), 8), np.float32))
    before = resident()
    for _ in range(10_000):
        module(np.zeros((int(rng.integers(1, 200)), 8), np.float32))

    assert resident() - before < 512  # pages


def test_every_stage_can_be_verified_on_the_way() -> None:
    module = tc.compile(str(MODEL_PATH), verify="always")

    assert module.report().kernels


def test_hand_written_ir_compiles() -> None:
    text = """
@graph
def main(x: f32[n, 8]):
    y: f32[n, 8] = relu(x)
    z: f32[n, 8] = add(y, const([1.0], f32[1]))
    return z
"""
    module = tc.compile(parse_module(text))
    x = np.random.default_rng(3).standard_normal((5, 8)).astype(np.float32)

    np.testing.assert_array_equal(module(x), np.maximum(x, 0) + 1)


def test_a_profile_names_every_kernel_launch(tmp_path: Path) -> None:
    images, _ = load_heldout()
    module = tc.compile(str(MODEL_PATH))

    rows = module.profile(as_model_input(images)[:16], repeat=3)

    assert sum(kernel.calls for kernel in module.report().kernels) == len(rows)
    assert all(row.seconds > 0 and row.node for row in rows)
    assert [row.seconds for row in rows] == sorted((row.seconds for row in rows), reverse=True)
    module.save(tmp_path / "digits.tcm")
    with pytest.raises(tc.TcError, match="loaded from a file"):
        tc.load(tmp_path / "digits.tcm").profile(as_model_input(images)[:1])


def test_a_module_that_threads_called_is_profiled_and_one_of_strings_too() -> None:
    # "too many values to unpack": each call at once has a frame. Strings were taken for arrays of another dtype.
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 4] x, string[k] s) => (float[n, 4] y, string[k] t) { y = Relu(x) t = Identity(s) }""")
    module, x = tc.compile(model, threads=1), np.ones((3, 4), np.float32)
    plain = tc.compile(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"""), threads=1)  # fmt: skip
    plain(x)
    plain._idle.append(plain._new_frame())

    assert plain.launch_seconds(x).shape == (0,)
    assert [row.kernel for row in module.profile(x, np.array(["a", "b"], object), repeat=2)]
    assert [row.kernel for row in plain.profile(x, repeat=2)] == [kernel.name for kernel in plain.report().kernels]


def test_blocks_of_a_size_that_depends_on_data_do_not_outlive_a_call() -> None:
    text = """
@graph
def main(x: f32[9]):
    a: i64[1, k] = nonzero(x)
    b: i64[1, 1] = sum(a, axes=(1,))
    return b
"""
    m = tc.compile(parse_module(text), threads=1)
    x = np.arange(9, dtype=np.float32)

    assert m(x) == x.sum()

    (frame,) = m._idle
    blocks = [frame.words[word] for word in m._dynamic_words]
    assert blocks and not any(blocks)
