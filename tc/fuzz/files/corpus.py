"""Files of every kind that `tc` reads, good ones and hostile ones, made by code: what a search for more begins with.

Each is one of the `KINDS`, bytes, and files that stand beside it. What is hostile is in the name.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tc.records.file import HEADER
from tc.runtime.digest import digest_of
from tc.runtime.saved import MAGIC, VERSION, pack_module

KINDS = ("onnx", "gguf", "ir", "module", "records")

_FAR = (-(1 << 63), -1, 0, 1 << 31, 1 << 40, (1 << 63) - 1)


@dataclass(frozen=True)
class FileCase:
    """A file: what it is meant to be, what is wrong with it, its bytes, files beside it by their names, links by theirs."""

    kind: str
    name: str
    data: bytes
    beside: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """The file, in a folder of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.beside.items():
            (folder / name).write_bytes(data)
        for name, target in self.links.items():
            (folder / name).unlink(missing_ok=True)
            os.symlink(target, folder / name)
        path = folder / {"onnx": "m.onnx", "gguf": "m.gguf", "ir": "m.tc", "module": "m.tcm", "records": "m.db"}[self.kind]
        path.write_bytes(self.data)
        return path


def all_cases() -> tuple[FileCase, ...]:
    """Every case; the same in every process but for the object code of modules."""
    return tuple(case for make in (_onnx_cases, _gguf_cases, _ir_cases, _module_cases, _record_cases) for case in make())


# -- ONNX


def _model(nodes: list[Any], inputs: Any = None, outputs: Any = None, initializers: Any = (), **options: Any) -> Any:
    from onnx import TensorProto, helper

    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])] if inputs is None else inputs
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)] if outputs is None else outputs
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    opsets = options.pop("opsets", [helper.make_opsetid("", 17)])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **options)


def _relu() -> Any:
    from onnx import helper

    return _model([helper.make_node("Relu", ["x"], ["y"], name="n")])


def _product(weights: Any = None) -> Any:
    from onnx import helper, numpy_helper

    weights = numpy_helper.from_array(np.ones((4, 8), np.float32), "w") if weights is None else weights
    return _model([helper.make_node("MatMul", ["x", "w"], ["y"], name="n")], initializers=[weights])


def _nested(depth: int, as_loop: bool = False) -> Any:
    """An If in an If in an If; or a Loop in a Loop."""
    from onnx import TensorProto, helper

    def step(level: int) -> list[Any]:
        counter = helper.make_tensor_value_info(f"i{level}", TensorProto.INT64, [])
        return [counter, helper.make_tensor_value_info(f"c{level}", TensorProto.BOOL, [])]

    first = [helper.make_node("Relu", ["x"], ["r"])]
    given, results = ([], ["r"]) if not as_loop else (step(depth), ["d", "r"])
    if as_loop:
        first.append(helper.make_node("Identity", [f"c{depth}"], ["d"]))
    inner = helper.make_graph(first, "b", given, [helper.make_empty_tensor_value_info(name) for name in results])
    for level in range(depth):
        out = [helper.make_empty_tensor_value_info(f"o{level}")]
        if as_loop:
            node = helper.make_node("Loop", ["t", ""], [f"o{level}"], body=inner)
            through = helper.make_node("Identity", [f"c{level}"], [f"d{level}"])
            inner = helper.make_graph([node, through], "b", step(level), [helper.make_empty_tensor_value_info(f"d{level}"), *out])
        else:
            node = helper.make_node("If", ["c"], [f"o{level}"], then_branch=inner, else_branch=inner if level == 0 else _leaf())
            inner = helper.make_graph([node], "b", [], out)
    nodes = [inner.node[0], helper.make_node("Identity", [inner.node[0].output[0]], ["y"])]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("t", TensorProto.INT64, []),
    ]
    return _model(nodes, inputs)


def _leaf() -> Any:
    from onnx import helper

    return helper.make_graph([helper.make_node("Relu", ["x"], ["l"])], "l", [], [helper.make_empty_tensor_value_info("l")])


def _functions(count: int, *, recursive: bool = False, factor: int = 1) -> Any:
    """Functions each of which calls the next one, `factor` times; the last one the first, if asked to."""
    from onnx import helper

    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = []
    for k in range(count):
        last = k == count - 1
        called = ("F0" if recursive else "") if last else f"F{k + 1}"
        names = ["a", *(f"t{j}" for j in range(factor - 1)), "b"]
        calls = [
            helper.make_node(called or "Relu", [x], [y], domain="f" if called else "") for x, y in pairwise(names)
        ]
        functions.append(helper.make_function("f", f"F{k}", ["a"], ["b"], calls, opsets))
    return _model([helper.make_node("F0", ["x"], ["y"], domain="f")], functions=functions, opsets=opsets)


def _deep_bytes(depth: int) -> bytes:
    """A graph within an attribute within a node within a graph, as bytes that no library would write."""
    content = b""
    for _ in range(depth):
        for number in (6, 5, 1):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            content = bytes([number << 3 | 2]) + _varint(len(content)) + content
    return bytes([7 << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _changed(make: Callable[[], Any], change: Callable[[Any], object]) -> bytes:
    model = make()
    change(model)
    return bytes(model.SerializeToString())


def _tensor(code: int = 1, dims: tuple[int, ...] = (4, 8), raw: bytes | None = None, **fields: Any) -> Any:
    from onnx import TensorProto

    tensor = TensorProto(name="w", data_type=code, dims=dims, **fields)
    if raw is not None:
        tensor.raw_data = raw
    return tensor


def _external(**entries: str) -> Any:
    tensor = _tensor(data_location=1)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def _sparse(values: int, indices: np.ndarray, dims: list[int]) -> Any:
    from onnx import helper, numpy_helper

    model = _product()
    del model.graph.initializer[:]
    parts = numpy_helper.from_array(np.ones(values, np.float32), "w"), numpy_helper.from_array(indices, "i")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(*parts, dims))
    return model


def _onnx_cases() -> Iterator[FileCase]:
    from onnx import TensorProto, helper, numpy_helper

    def case(name: str, model: Any, **more: Any) -> FileCase:
        return FileCase("onnx", name, model if isinstance(model, bytes) else model.SerializeToString(), **more)

    whole = _product().SerializeToString()
    large = _product(numpy_helper.from_array(np.ones((4, 1 << 15), np.float32), "w")).SerializeToString()
    yield case("good", whole)
    yield case("good, large", large)
    yield case("good, nested", _nested(3))
    yield case("good, loops", _nested(2, as_loop=True))
    yield case("good, functions", _functions(3))
    for part in (0.1, 0.5, 0.9, 0.99):
        yield case(f"cut at {part}", whole[: int(len(whole) * part)])
        yield case(f"large, cut at {part}", large[: int(len(large) * part)])
    yield case("empty", b"")
    yield case("zeros", bytes(1 << 17))
    yield case("ones", b"\xff" * (1 << 17))
    yield case("groups that begin", b"\x3b" * 100_000)
    for depth in (20, 30, 60, 1000, 20_000):
        yield case(f"graphs nested {depth} deep as bytes", _deep_bytes(depth))
    for depth in (12, 24, 30):
        yield case(f"branches nested {depth} deep", _nested(depth))
    yield case("loops nested 12 deep", _nested(12, as_loop=True))
    yield case("a function that calls itself", _functions(1, recursive=True))
    yield case("functions that call each other", _functions(3, recursive=True))
    yield case("a chain of 3000 functions", _functions(3000))
    yield case("functions that call twice, 20 deep", _functions(20, factor=2))
    yield case("functions that call four times, 22 deep", _functions(22, factor=4))
    yield case("a chain of 3000 nodes", _model(
        [helper.make_node("Relu", [f"v{k}" if k else "x"], [f"v{k + 1}"]) for k in range(3000)],
        outputs=[helper.make_empty_tensor_value_info("v3000")],
    ))

    # external data
    data = {"w.bin": b"\0" * 128}
    for name, entries in {
        "good": {"location": "w.bin"},
        "outside": {"location": "../../../etc/passwd"},
        "absolute": {"location": "/etc/passwd"},
        "of a device": {"location": "/dev/zero"},
        "of a link": {"location": "link"},
        "of a link to itself": {"location": "loop"},
        "of a folder": {"location": "."},
        "of a name of 5000 letters": {"location": "w" * 5000},
        "of a name with a NUL": {"location": "w\0.bin"},
        "of no name": {"location": ""},
        "behind the end": {"location": "w.bin", "offset": "64"},
        "before the start": {"location": "w.bin", "offset": "-64"},
        "far away": {"location": "w.bin", "offset": str(1 << 62)},
        "of 5000 digits": {"location": "w.bin", "offset": "9" * 5000},
        "of a negative length": {"location": "w.bin", "length": "-128"},
        "of another length": {"location": "w.bin", "length": "64"},
        "of no number": {"location": "w.bin", "offset": "nan"},
    }.items():
        yield case(f"external data {name}", _product(_external(**entries)), beside=data, links={"link": "/etc/passwd", "loop": "loop"})

    # tensors
    for far in _FAR:
        yield case(f"a dim of {far}", _product(_tensor(dims=(4, far), raw=b"\0" * 128)))
        yield case(f"dims of {far} and {far}", _product(_tensor(dims=(far, far), raw=b"")))
        yield case(f"an input of {far}", _model(
            [helper.make_node("Relu", ["x"], ["y"])], [helper.make_tensor_value_info("x", TensorProto.FLOAT, [far, 4])],
        ))
        shape = numpy_helper.from_array(np.array([far, 2], np.int64), "s")
        yield case(f"a fill of {far}", _model([helper.make_node("ConstantOfShape", ["s"], ["y"])], [], initializers=[shape]))
        yield case(f"a reshape to {far}", _model([helper.make_node("Reshape", ["x", "s"], ["y"])], initializers=[shape]))
        ends = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("a", 0), ("b", far), ("c", 1))]
        yield case(f"a range to {far}", _model([helper.make_node("Range", ["a", "b", "c"], ["y"])], [], initializers=ends))
        yield case(f"a permutation by {far}", _model([helper.make_node("Transpose", ["x"], ["y"], perm=[far, 0])]))
        yield case(f"an axis {far}", _model([helper.make_node("Softmax", ["x"], ["y"], axis=far)]))
        yield case(f"a tile of {far}", _model([helper.make_node("Tile", ["x", "s"], ["y"])], initializers=[shape]))
        yield case(f"an expansion to {far}", _model([helper.make_node("Expand", ["x", "s"], ["y"])], initializers=[shape]))
        pads = numpy_helper.from_array(np.array([0, far, 0, far], np.int64), "p")
        yield case(f"a padding by {far}", _model([helper.make_node("Pad", ["x", "p"], ["y"])], initializers=[pads]))
    yield case("65 dims", _product(_tensor(dims=(1,) * 65, raw=b"\0" * 4)))
    yield case("an input of 65 dims", _model(
        [helper.make_node("Relu", ["x"], ["y"])], [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1] * 65)],
    ))
    yield case("100000 dims", _product(_tensor(dims=(1,) * 100_000, raw=b"\0" * 4)))
    yield case("raw data too short", _product(_tensor(raw=b"\0" * 127)))
    yield case("raw data too long", _product(_tensor(raw=b"\0" * 129)))
    yield case("no data", _product(_tensor()))
    yield case("floats in the wrong field", _product(_tensor(double_data=[1.0] * 32)))
    yield case("numbers that the type has not", _product(_tensor(3, (2, 2), int32_data=[1 << 30] * 4)))
    for code in (0, 8, 14, 15, 22, 23, 24, 26, 27, 77, 2**31 - 1, -1):
        yield case(f"an element type {code}", _product(_tensor(code, (2, 2), b"\0" * 16)))
        typed = _relu()
        typed.graph.input[0].type.tensor_type.elem_type = code
        yield case(f"an input of type {code}", typed)
        yield case(f"a cast to {code}", _model([helper.make_node("Cast", ["x"], ["y"], to=code)]))
    yield case("strings for numbers", _product(_tensor(8, (4, 8), string_data=[b"\xff\xfe"] * 32)))
    yield case("a sparse index outside", _sparse(1, np.array([99], np.int64), [4, 8]))
    yield case("a negative sparse index", _sparse(1, np.array([-1], np.int64), [4, 8]))
    yield case("sparse dims of 2^40", _sparse(1, np.array([0], np.int64), [1 << 40, 1 << 20]))
    yield case("negative sparse dims", _sparse(1, np.array([0], np.int64), [-4, -8]))
    yield case("sparse values of another number", _sparse(3, np.array([0], np.int64), [4, 8]))
    yield case("sparse indices of floats", _sparse(1, np.array([0.5], np.float32), [4, 8]))
    yield case("sparse indices of rank 3", _sparse(1, np.zeros((1, 1, 1), np.int64), [4, 8]))

    # graphs
    yield case("no graph", _changed(_relu, lambda m: m.ClearField("graph")))
    yield case("no outputs", _changed(_relu, lambda m: m.graph.ClearField("output")))
    yield case("an output of nothing", _changed(_relu, lambda m: setattr(m.graph.output[0], "name", "q")))
    yield case("an output without a name", _changed(_relu, lambda m: setattr(m.graph.output[0], "name", "")))
    yield case("an input without a name", _changed(_relu, lambda m: setattr(m.graph.input[0], "name", "")))
    yield case("a node without outputs", _changed(_relu, lambda m: m.graph.node[0].ClearField("output")))
    yield case("a node without inputs", _changed(_relu, lambda m: m.graph.node[0].ClearField("input")))
    yield case("a cycle", _model([helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
                                  helper.make_node("Relu", ["a"], ["y"])]))
    yield case("a node that reads itself", _model([helper.make_node("Add", ["x", "y"], ["y"])]))
    yield case("a name twice", _model([helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]))
    yield case("an input twice", _changed(_relu, lambda m: m.graph.input.append(m.graph.input[0])))
    yield case("an output twice", _changed(_relu, lambda m: m.graph.output.append(m.graph.output[0])))
    yield case("an initializer twice", _changed(_product, lambda m: m.graph.initializer.append(m.graph.initializer[0])))
    yield case("an initializer for an input", _changed(
        _product, lambda m: m.graph.input.append(helper.make_tensor_value_info("w", TensorProto.INT64, [3]))
    ))
    yield case("names with paths and formats", _changed(_relu, lambda m: (
        setattr(m.graph.node[0], "name", "../../%s%n{x}\n\x1b[31m/"), setattr(m.graph.input[0], "name", "../{0}%d"),
        m.graph.node[0].input.__setitem__(0, "../{0}%d"),
    )))
    yield case("a name of a million letters", _changed(_relu, lambda m: setattr(m.graph.node[0], "name", "n" * 1_000_000)))
    yield case("invalid UTF-8 in a name", _relu().SerializeToString().replace(b"Relu", b"Re\xff\xfe"))
    yield case("a dim called like an expression", _changed(
        _relu, lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", "n*(2+__import__('os'))")
    ))
    yield case("100000 attributes", _changed(
        _relu, lambda m: m.graph.node[0].attribute.extend([helper.make_attribute(f"a{k}", k) for k in range(100_000)])
    ))
    yield case("an attribute twice", _model([helper.make_node("Softmax", ["x"], ["y"], axis=1)]).SerializeToString() + b"")
    yield case("an attribute without a type", _changed(
        lambda: _model([helper.make_node("Softmax", ["x"], ["y"], axis=1)]), lambda m: m.graph.node[0].attribute[0].ClearField("type")
    ))
    yield case("an attribute of the type 99", _changed(
        lambda: _model([helper.make_node("Softmax", ["x"], ["y"], axis=1)]), lambda m: setattr(m.graph.node[0].attribute[0], "type", 14)
    ))
    yield case("a string where an integer belongs", _model([helper.make_node("Softmax", ["x"], ["y"], axis="one")]))
    yield case("a string where a list belongs", _model([helper.make_node("Transpose", ["x"], ["y"], perm="10")]))
    yield case("sizes that are NaN", _model(
        [helper.make_node("Upsample", ["x", "s"], ["y"])],
        initializers=[numpy_helper.from_array(np.array([np.nan, np.inf], np.float32), "s")], opsets=[helper.make_opsetid("", 9)],
    ))
    yield case("a range by NaN", _model([helper.make_node("Range", ["a", "a", "a"], ["y"])], [],
                                         initializers=[numpy_helper.from_array(np.array(np.nan, np.float32), "a")]))
    for version in (-(1 << 63), -1, 0, 1 << 31, (1 << 63) - 1):
        yield case(f"opset {version}", _changed(_relu, lambda m, v=version: setattr(m.opset_import[0], "version", v)))
        yield case(f"ir version {version}", _changed(_relu, lambda m, v=version: setattr(m, "ir_version", v)))
        yield case(f"opset {version} of another domain", _changed(_relu, lambda m, v=version: (
            m.opset_import.append(helper.make_opsetid("ai.onnx.ml", v)), setattr(m.graph.node[0], "domain", "ai.onnx.ml"),
            setattr(m.graph.node[0], "op_type", "Scaler"),
        )))
    yield case("no opset", _changed(_relu, lambda m: m.ClearField("opset_import")))
    yield case("no opset and an old ir", _changed(_relu, lambda m: (m.ClearField("opset_import"), setattr(m, "ir_version", 2))))
    yield case("an opset twice", _changed(_relu, lambda m: m.opset_import.append(helper.make_opsetid("", 3))))
    yield case("a function without a body", _changed(lambda: _functions(1), lambda m: m.functions[0].ClearField("node")))
    yield case("a function twice", _changed(lambda: _functions(1), lambda m: m.functions.append(m.functions[0])))
    yield case("a function without opsets", _changed(lambda: _functions(1), lambda m: m.functions[0].ClearField("opset_import")))
    yield case("a loop without a body", _model([helper.make_node("Loop", ["", ""], ["y"])]))
    yield case("a loop of a body without inputs", _model([helper.make_node("Loop", ["", ""], ["y"], body=_leaf())]))
    yield case("a scan of -5 inputs", _model([helper.make_node("Scan", ["x"], ["y"], body=_leaf(), num_scan_inputs=-5)]))
    yield case("a map as input", _changed(_relu, lambda m: m.graph.input[0].type.map_type.CopyFrom(
        type(m.graph.input[0].type.map_type)(key_type=7))))
    yield case("an input without a type", _changed(_relu, lambda m: m.graph.input[0].ClearField("type")))
    yield case("an input without a shape", _changed(_relu, lambda m: m.graph.input[0].type.tensor_type.ClearField("shape")))
    yield case("a sequence of sequences", _changed(_relu, lambda m: m.graph.input[0].type.CopyFrom(
        helper.make_sequence_type_proto(helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [2]))))))
    yield case("an einsum of too many letters", _model([helper.make_node("Einsum", ["x"], ["y"], equation="ab->" + "ab" * 5000)]))


# -- GGUF


def _text(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_file(
    tensors: int = 1, entries: int = 1, *, version: int = 3, rank: int = 2, dims: tuple[int, ...] = (32, 2), kind: int = 2,
    offset: int = 0, value: bytes = struct.pack("<II", 4, 32), key: str | bytes = "general.alignment", data: bytes = b"\0" * 36,
) -> bytes:
    """A file with one tensor and one entry of metadata, each of whose numbers may lie."""
    head = b"GGUF" + struct.pack("<IQQ", version, tensors & (2**64 - 1), entries & (2**64 - 1))
    sizes = b"".join(struct.pack("<Q", dim & (2**64 - 1)) for dim in dims)
    info = _text("w") + struct.pack("<I", rank) + sizes + struct.pack("<IQ", kind, offset)
    made = head + _text(key) + value + info
    return made + bytes(-len(made) % 32) + data


def _gguf_cases() -> Iterator[FileCase]:
    good = gguf_file()
    nested = b"".join(struct.pack("<IIQ", 9, 9, 1) for _ in range(1))
    deep = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 10_000 + struct.pack("<I", 4)
    made = {"good": good, "version 9": gguf_file(version=9)}
    made |= {"nested arrays": gguf_file(value=nested), "deep arrays": gguf_file(value=deep)}
    for part in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9):
        made[f"cut at {part}"] = good[: int(len(good) * part)]
    for far in (2, 1 << 20, 1 << 31, 1 << 60, -1):
        made[f"{far} tensors"] = gguf_file(tensors=far)
        made[f"{far} entries"] = gguf_file(entries=far)
        made[f"a dim of {far}"] = gguf_file(dims=(32, far))
        made[f"dims of {far}"] = gguf_file(dims=(far, far))
        made[f"an offset of {far}"] = gguf_file(offset=far & (2**64 - 1))
        made[f"an array of {far} texts"] = gguf_file(value=struct.pack("<IIQ", 9, 8, far & (2**64 - 1)))
        made[f"an array of {far} numbers"] = gguf_file(value=struct.pack("<IIQ", 9, 4, far & (2**64 - 1)))
        made[f"an array of {far} arrays"] = gguf_file(value=struct.pack("<IIQ", 9, 9, far & (2**64 - 1)) + struct.pack("<IQ", 4, 0) * 1000)
        made[f"a text of {far} bytes"] = gguf_file(value=struct.pack("<IQ", 8, far & (2**64 - 1)))
    for number in (0, 1, 3, 4, 8, 12, 14, 30, 31, 2**32 - 1):
        made[f"a tensor of the kind {number}"] = gguf_file(kind=number)
        made[f"a value of the type {number}"] = gguf_file(value=struct.pack("<I", number) + b"\0" * 8)
    for rank in (0, 1, 8, 9, 2**32 - 1):
        made[f"rank {rank}"] = gguf_file(rank=rank, dims=(32,) * min(rank, 9))
    for alignment in (0, 3, 1 << 31):
        made[f"alignment {alignment}"] = gguf_file(value=struct.pack("<II", 4, alignment))
    made["alignment of a text"] = gguf_file(value=struct.pack("<I", 8) + _text("32"))
    made["alignment true"] = gguf_file(value=struct.pack("<IB", 7, 1))
    made["invalid UTF-8 in a key"] = gguf_file(key=b"\xff\xfe")
    for name, data in made.items():
        yield FileCase("gguf", name, data)


# -- text of programs

_GRAPH = "@graph\ndef main(x: f32[n, 4]):\n    y: f32[n, 4] = {}\n    return y\n"
_LOOPS = """@loops
def scale(A: f32[n], B: f32[n], n: i64):
    outputs(1)
    for i in parallel(n, grain=64):
        with block('scale', vi=spatial(n, i)):
            B[vi] = A[vi] * {}
"""


def _ir_cases() -> Iterator[FileCase]:
    digits = "9" * 5000
    made = {
        "good graph": _GRAPH.format("relu(x)"),
        "good loops": _LOOPS.format("2.0"),
        "empty": "",
        "a NUL": _GRAPH.format("relu(\0x)"),
        "an open bracket": _GRAPH.format("relu(x"),
        "100000 brackets": _GRAPH.format("(" * 100_000 + "x"),
        "nested 90 deep": _LOOPS.format("(" * 90 + "2.0" + ")" * 90),
        "nested 3000 deep by minus": _LOOPS.format("-" * 3000 + "2.0"),
        "nested 20000 deep by minus": _LOOPS.format("-" * 20_000 + "2.0"),
        "a sum of 3000": _LOOPS.format(" + ".join(["A[vi]"] * 3000)),
        "a sum of 50000": _LOOPS.format(" + ".join(["A[vi]"] * 50_000)),
        "a call within a call, 3000 deep": _LOOPS.format("exp(" * 3000 + "2.0" + ")" * 3000),
        "an int of 5000 digits": _LOOPS.format(digits),
        "a float of 5000 digits": _LOOPS.format(digits + ".0"),
        "a power": _LOOPS.format("9 ** 9 ** 9"),
        "a shift": _LOOPS.format("1 << 10000000000"),
        "a string": _LOOPS.format("'x' * 10000000000"),
        "a call of the system": _GRAPH.format("__import__('os').system('true')"),
        "a lambda": _GRAPH.format("(lambda: x)()"),
        "a comprehension": _GRAPH.format("[x for _ in range(10)]"),
        "an unknown operator": _GRAPH.format("rleu(x)"),
        "an unknown name": _GRAPH.format("relu(z)"),
        "no arguments": _GRAPH.format("relu()"),
        "an unknown attribute": _GRAPH.format("relu(x, by=3)"),
        "an attribute of a wrong type": _GRAPH.format("softmax(x, axis='one')"),
        "an attribute of 10^40": _GRAPH.format("softmax(x, axis=1" + "0" * 40 + ")"),
        "a wrong dtype": _GRAPH.replace("f32", "f33", 1).format("relu(x)"),
        "a dim of 5000 digits": _GRAPH.replace("4]", digits + "]", 1).format("relu(x)"),
        "a negative dim": _GRAPH.replace("4]", "-4]", 1).format("relu(x)"),
        "a dim of a float": _GRAPH.replace("4]", "4.5]", 1).format("relu(x)"),
        "a dim divided by 0": _GRAPH.replace("4]", "n // 0]", 1).format("relu(x)"),
        "a function twice": _GRAPH.format("relu(x)") * 2,
        "no return": "@graph\ndef main(x: f32[4]):\n    pass\n",
        "a class": "class A: pass\n",
        "an import": "import os\n",
        "another decorator": "@other\ndef main(): pass\n",
        "defaults": "@graph\ndef main(x: f32[4] = 3, *a, **k):\n    return x\n",
        "an entry that is none": "entry('nothing')\n" + _GRAPH.format("relu(x)"),
        "an index outside": _LOOPS.replace("A[vi]", "A[vi + 1" + "0" * 30 + "]").format("2.0"),
        "a loop of a negative extent": _LOOPS.replace("parallel(n,", "parallel(-n,").format("2.0"),
        "a loop of no extent": _LOOPS.replace("parallel(n, grain=64)", "parallel()").format("2.0"),
        "no block": _LOOPS.replace("with block('scale', vi=spatial(n, i)):", "if True:").format("2.0"),
        "outputs of 10^30": _LOOPS.replace("outputs(1)", "outputs(1" + "0" * 30 + ")").format("2.0"),
        "tabs and a lone surrogate": _GRAPH.format("relu(x)").replace("    ", "\t") + "# \udcff",
        "3000 nested loops": "@loops\ndef f(A: f32[4]):\n    outputs(1)\n"
        + "".join("    " * 1 + " " * k + f"for i{k} in range(1):\n" for k in range(90)) + " " * 100 + "A[0] = 1.0\n",
    }
    for name, text in made.items():
        yield FileCase("ir", name, text.encode("utf-8", "surrogateescape"))


# -- compiled modules


def _module_cases() -> Iterator[FileCase]:
    def packed(header: Any) -> bytes:
        return pack_module(header, []) if isinstance(header, dict) else b""

    def with_header(text: bytes) -> bytes:
        return struct.pack("<8sI32sQ", MAGIC, VERSION, digest_of(text), len(text)) + text

    good = packed({"target": "x86-64-v2"})
    made = {
        "empty": b"",
        "the magic alone": MAGIC,
        "another magic": b"PK\x03\x04" + bytes(100),
        "no keys": good,
        "another hash": good[:20] + bytes(32) + good[52:],
        "another version": good[:8] + struct.pack("<I", 99) + good[12:],
        "a header of 2^60": good[:44] + struct.pack("<Q", 1 << 60) + good[52:],
        "a header of 2^63": good[:44] + struct.pack("<Q", (1 << 64) - 1) + good[52:],
        "no JSON": with_header(b"{nonsense"),
        "a list": with_header(b"[]"),
        "a number": with_header(b"3"),
        "JSON nested 100000 deep": with_header(b"[" * 100_000 + b"]" * 100_000),
        "a number of 5000 digits": with_header(b'{"sections": [[' + b"9" * 5000 + b", 1]]}"),
        "invalid UTF-8": with_header(b'{"\xff": 1}'),
        "sections that are no list": with_header(b'{"sections": 3}'),
        "a section outside": with_header(b'{"sections": [[0, 1000000]]}'),
        "a section before": with_header(b'{"sections": [[-5, 2]]}'),
        "a section of a text": with_header(b'{"sections": [["a", "b"]]}'),
        "a target that is none": packed({"target": "abacus"}),
        "a target of a list": packed({"target": [1]}),
        "zeros": bytes(4096),
    }
    for part in (0.3, 0.6, 0.95):
        made[f"cut at {part}"] = good[: int(len(good) * part)]
    for name, data in made.items():
        yield FileCase("module", name, data)


# -- tuning databases


def _record_cases() -> Iterator[FileCase]:
    head = HEADER
    record = json.dumps({"kind": "record", "workload": "w", "target": "x86-64-v3", "threads": 1, "seconds": [1.0]}).encode()
    lines = {
        "empty": b"",
        "a record without a checksum": record,
        "no JSON": b"{nonsense",
        "a list": b"[]",
        "nested 100000 deep": b"[" * 100_000,
        "a number of 5000 digits": b'{"threads": ' + b"9" * 5000 + b"}",
        "NaN": b'{"seconds": NaN}',
        "invalid UTF-8": b'{"\xff": 1}',
        "a NUL": b"\0" * 100,
        "10 MB without an end": b"a" * (10 << 20),
        "20000 lines": b"\n".join([record] * 20_000),
    }
    yield FileCase("records", "no header", record + b"\n")
    yield FileCase("records", "nothing", b"")
    yield FileCase("records", "zeros", bytes(100_000))
    yield FileCase("records", "another version", head.replace(b"1", b"9"))
    for name, line in lines.items():
        yield FileCase("records", name, head + line + b"\n")
        yield FileCase("records", f"{name}, torn", head + line)
