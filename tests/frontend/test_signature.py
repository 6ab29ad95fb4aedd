"""Sequences, optionals and strings as inputs and outputs of a model: against onnxruntime, or ONNX's reference where that has no kernel."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

import tc
from tc.cli.main import main
from tc.errors import InputError, ShapeError, UnsupportedError
from tc.frontend.onnx.reference_ops import corrected_ops
from tc.frontend.signature import StringTable, pack_value, unpack_value

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
RNG = np.random.default_rng(0)


def parsed(text: str) -> onnx.ModelProto:
    return parse_model(HEAD + text)


def items(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.asarray(RNG.standard_normal(shape), np.float32) for shape in shapes]


def strings(*texts: Any) -> np.ndarray:
    return np.array(texts, object)


def same(found: Any, expected: Any) -> None:
    assert (found is None) == (expected is None)
    if isinstance(expected, list):
        assert isinstance(found, list)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b)
    elif expected is not None:
        assert (found.shape, found.dtype.kind) == (np.shape(expected), np.asarray(expected).dtype.kind)
        np.testing.assert_array_equal(found, expected)


def by_runtime(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, feeds)
    return found


def by_reference(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    found: list[Any] = ReferenceEvaluator(model, new_ops=list(corrected_ops())).run(None, feeds)
    return found


THREE, RAGGED, EMPTY = items((2, 3), (2, 3), (2, 3)), items((1, 3), (0, 3), (4, 3)), []

SEQUENCES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "given back": ("g (seq(float[a, 3]) s) => (seq(float[a, 3]) y) { y = Identity(s) }", [{"s": THREE}, {"s": RAGGED}, {"s": THREE[:1]}]),
    "length": ("g (seq(float[a, 3]) s) => (int64 y) { y = SequenceLength(s) }", [{"s": THREE}, {"s": RAGGED}]),
    "item": (
        "g (seq(float[a, 3]) s, int64 p) => (float[a, 3] y) { t = SequenceAt(s, p) y = Exp(t) }",
        [{"s": RAGGED, "p": np.array(k)} for k in (0, 1, -1)],
    ),
    "joined": (
        "g (seq(float[a, 3]) s) => (float[b, 3] y) { t = ConcatFromSequence<axis = 0>(s) y = Neg(t) }",
        [{"s": THREE}, {"s": RAGGED}],
    ),
    "insert": (
        "g (seq(float[a, 3]) s, float[a, 3] x, int64 p) => (seq(float[a, 3]) y) { y = SequenceInsert(s, x, p) }",
        [{"s": RAGGED, "x": THREE[0], "p": np.array(k)} for k in (0, 3, -3)],
    ),
    "split at run time": (
        "g (float[6, 2] x, int64[3] k) => (seq(float[a, 2]) y) { y = SplitToSequence(x, k) }",
        [{"x": items((6, 2))[0], "k": np.array(k)} for k in ([1, 2, 3], [6, 0, 0])],
    ),
    "split of unknown count": (
        "g (float[n, 2] x) => (seq(float[a, 2]) y) { k = Constant<value = int64 {2}>() y = SplitToSequence(x, k) }",
        [{"x": items((n, 2))[0]} for n in (1, 4, 5)],
    ),
    "split of known count": (
        "g (float[5, 2] x) => (seq(float[a, 2]) y, float[5, 2] z) {"
        " k = Constant<value = int64 {2}>() t = Neg(x) y = SplitToSequence(t, k) z = Exp(x) }",
        [{"x": items((5, 2))[0]}],
    ),
    "made": (
        "g (float[2] x, float[3] z) => (seq(float[a]) y) { y = SequenceConstruct(x, z) }",
        [dict(zip("xz", items((2,), (3,)), strict=True))],
    ),
    "two of integers": (
        "g (seq(int64[a]) s, seq(int64[a]) t) => (seq(int64[a]) y, seq(int64[a]) z) { y = Identity(t) z = Identity(s) }",
        [{"s": [np.arange(3)], "t": [np.arange(2), np.arange(1)]}],
    ),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_are_lists(name: str) -> None:
    text, calls = SEQUENCES[name]
    model = parsed(text)
    module = tc.compile(model)

    for feeds in calls:
        found = module.run(feeds)
        for value, expected in zip(found.values(), by_runtime(model, feeds), strict=True):
            pairs = zip(value, expected, strict=True) if isinstance(expected, list) else [(value, expected)]
            for a, b in pairs:
                assert (a.shape, a.dtype) == (np.shape(b), b.dtype)
                np.testing.assert_allclose(a, b, rtol=1e-6)


def test_an_empty_sequence_is_an_empty_list() -> None:
    model = parsed("g (seq(float[a, 3]) s) => (seq(float[a, 3]) y, int64 n) { y = Identity(s) n = SequenceLength(s) }")

    y, n = tc.compile(model)(EMPTY)

    assert y == []
    assert n == 0


def test_a_length_that_is_promised_makes_native_code() -> None:
    model = parsed("g (seq(float[2, 3]) s) => (float[6, 3] y, seq(float[2, 3]) z) { y = ConcatFromSequence<axis = 0>(s) z = Identity(s) }")

    module = tc.compile(model, dims={"s.length": 3})
    y, z = module(THREE)

    assert not module.report().fallbacks
    np.testing.assert_array_equal(y, np.concatenate(THREE))
    same(z, THREE)
    with pytest.raises(InputError, match='input "s" is 2 items, must be a list of 3 arrays'):
        module(THREE[:2])


MAYBE = """g (bool c, float[2] x) => (optional(seq(float[2])) y) {
    y = If(c) <
        then_branch = a () => (optional(seq(float[2])) o) { s = SequenceConstruct(x, x) o = Optional(s) },
        else_branch = b () => (optional(seq(float[2])) p) { t = SequenceEmpty() p = Optional(t) }>
}"""


def test_an_optional_that_data_decide() -> None:
    module = tc.compile(parsed(MAYBE))
    x = items((2,))[0]

    same(module(np.array(True), x), [x, x])
    same(module(np.array(False), x), [])


@pytest.mark.parametrize("given", [None, np.arange(4, dtype=np.float32)])
def test_an_optional_tensor(given: np.ndarray | None) -> None:
    model = parsed("g (optional(float[n]) o) => (bool y, optional(float[n]) z) { y = OptionalHasElement(o) z = Identity(o) }")
    model.opset_import[0].version = 18

    y, z = tc.compile(model)(given)

    assert bool(y) == (given is not None)
    same(z, given)


# The shape that a file states for what is in an optional was compared with nothing.
def test_the_tensor_in_an_optional_has_the_shape_of_the_file(tmp_path: Path) -> None:
    model = parsed("g (optional(float[2, n]) o) => (bool y, optional(float[2, n]) z) { y = OptionalHasElement(o) z = Identity(o) }")
    model.opset_import[0].version = 18
    module = tc.compile(model)
    module.save(tmp_path / "m.tcm")

    for each in (module, tc.load(tmp_path / "m.tcm")):
        for given in (None, np.ones((2, 3), np.float32), np.ones((2, 0), np.float32)):
            same(each(given)[1], given)
        with pytest.raises(InputError, match=r'input "o": dim 0 is 3, but must be 2 \[TC2003\]'):
            each(np.ones((3, 3), np.float32))
        with pytest.raises(InputError, match=r'input "o": rank is 1, but must be 2 \[TC2003\]'):
            each(np.ones(2, np.float32))


LOOP16 = """g (int64 n, bool c, optional(seq(float)) o) => (seq(float[]) y) {
    y = Loop(n, c, o) <body = b (int64 i, bool d, optional(seq(float)) s) => (bool e, seq(float) r) {
        e = Identity(d)  has = OptionalHasElement(s)  none = Not(has)
        q = If(none) <then_branch = p () => (seq(float) t) { k = Constant<value = float {0}>() t = SequenceConstruct(k) },
                      else_branch = r () => (seq(float) u) { u = OptionalGetElement(s) }>
        x = Constant<value = float[3] {1, 2, 3}>()  one = Constant<value = int64[1] {1}>() zero = Constant<value = int64[1] {0}>()
        j = Add(i, one)  v = Slice(x, zero, j)  r = SequenceInsert(q, v)
    }>
}"""


@pytest.mark.parametrize("given", [None, [np.array(7, np.float32)]])
def test_a_loop_that_carries_an_optional(given: list[np.ndarray] | None) -> None:
    x = np.arange(1, 4, dtype=np.float32)

    found = tc.compile(parsed(LOOP16))(np.array(2), np.array(True), given)

    same(found, [np.array(0 if given is None else 7, np.float32), x[:1], x[:2]])


def test_a_tensor_whose_rank_data_decide() -> None:
    model = parsed("""g (bool c, float[2] x) => (y) { y = If(c) <
        then_branch = a () => (o1) { o1 = Neg(x) },
        else_branch = b () => (o2) { k = Constant<value_ints = [0]>() o2 = Unsqueeze(x, k) }> }""")
    module, x = tc.compile(model), items((2,))[0]

    same(module(np.array(True), x), -x)
    same(module(np.array(False), x), x[None])


TENSORS_OF_TORCH = {
    "strings": 'g (string[n] t, float[2] x) => (bool[n] y, string[n] z, float[2] w) { y = Equal(t, t) z = Identity(t) w = Neg(x) }',
    "numbers": """g (float[2] x, bool c) => (y, float[2] z, seq(float[a]) s) { z = Neg(x) s = SequenceConstruct(x, z) y = If(c) <
        then_branch = a () => (o1) { o1 = Neg(x) },
        else_branch = b () => (o2) { k = Constant<value_ints = [0]>() o2 = Unsqueeze(x, k) }> }""",
    "bf16": "g (seq(bfloat16[a]) s, bfloat16[b] x) => (seq(bfloat16[a]) y) { y = SequenceInsert(s, x) }",
}


def test_tensors_of_torch_are_taken_and_given_where_there_are_strings_sequences_and_unknown_ranks() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([1.0, 2.0])

    y, z, w = tc.compile(parsed(TENSORS_OF_TORCH["strings"]))(strings("a", "b"), x)  # the first decides what results are
    assert [type(each) for each in (y, z, w)] == [np.ndarray] * 3
    module = tc.compile(parsed(TENSORS_OF_TORCH["numbers"]))
    for condition, wanted in ((True, -x), (False, x[None])):
        y, z, s = module(x, torch.tensor(condition))
        assert torch.equal(y, wanted)
        assert torch.equal(z, -x)
        assert [torch.equal(a, b) for a, b in zip(s, (x, -x), strict=True)] == [True, True]
    wide = x.to(torch.bfloat16)
    found = tc.compile(parsed(TENSORS_OF_TORCH["bf16"]))([wide[:1]], wide)
    same([each.astype(np.float32) for each in found], [np.array([1], np.float32), np.array([1, 2], np.float32)])
    with pytest.raises(InputError, match="cannot be read through DLPack"):
        module(x.requires_grad_(), np.array(True))


def test_strings_that_are_made_of_a_tensor_of_torch_are_an_array() -> None:
    torch = pytest.importorskip("torch")
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=[1, 2], values_strings=["a", "b"])
    infos = [helper.make_tensor_value_info(name, code, ["n"]) for name, code in (("x", 7), ("y", 8))]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]

    same(tc.compile(helper.make_model(graph, opset_imports=opsets, ir_version=8))(torch.tensor([2, 1])), strings("b", "a"))


def test_a_saved_module_knows_them(tmp_path: Path) -> None:
    text = """g (seq(float[a, 3]) s, string[n] t) => (seq(float[a, 3]) y, bool[n] e) {
        y = Identity(s)  k = Constant<value_string = "é">()  e = Equal(t, k)
    }"""
    module = tc.compile(parsed(text))
    module.save(tmp_path / "m.tcm")

    for again in (tc.load(tmp_path / "m.tcm"), pickle.loads(pickle.dumps(module))):
        y, e = again(RAGGED, strings("é", "e"))
        same(y, RAGGED)
        same(e, np.array([True, False]))
        assert list(map(str, again.signature.inputs)) == ["s: sequence of f32", "t: tensor of string"]
    with pytest.raises(SystemExit, match="2"):
        raise SystemExit(main(["run", str(tmp_path / "m.tcm")]))
    assert main(["inspect", str(tmp_path / "m.tcm")]) == 0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, 'input "s" is None, must be a sequence'),
        (THREE[0], 'input "s" is a ndarray, must be a list of arrays'),
        ([THREE[0], np.zeros(3)], r'input "s"\[1\]: dtype is float64, but must be f32'),
    ],
)
def test_what_is_no_sequence_is_refused(value: Any, words: str) -> None:
    module = tc.compile(parsed("g (seq(float[a, 3]) s) => (seq(float[a, 3]) y) { y = Identity(s) }"))

    with pytest.raises(InputError, match=words):
        module(value)
    with pytest.raises(InputError, match="missing; the inputs are: s: sequence of f32"):
        module.run({})
    with pytest.raises(InputError, match="out: a module"):
        module(THREE, out=[])


def test_what_makes_inputs_up_says_that_it_cannot() -> None:
    model = parsed("g (seq(float[a, 3]) s) => (seq(float[a, 3]) y) { y = Identity(s) }")

    with pytest.raises(UnsupportedError, match=r'verify="always": it takes .* s: sequence of f32'):
        tc.compile(model, verify="always")
    with pytest.raises(UnsupportedError, match="tune: it takes"):
        tc.tune(model, "1s")


@pytest.mark.parametrize("k", ["int64 {0}", "int64[2] {3, 4}"])
def test_bad_parts_at_run_time_are_refused(k: str) -> None:
    shape = "" if "[" not in k else "[2]"
    model = parsed(f"g (float[6] x, int64{shape} k) => (seq(float[a]) y) {{ y = SplitToSequence(x, k) }}")

    with pytest.raises((InputError, ShapeError), match=r"SplitToSequence: parts of 0|SplitToSequence_0: split: the sizes sum to"):
        tc.compile(model)(np.zeros(6, np.float32), np.array(0) if not shape else np.array([3, 4]))


# -- strings

WORDS = strings("", "a", "Grüße", "a", "日本", "b\0c", "x y", "a")

STRINGS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "Identity": ("g (string[n] s) => (string[n] y) { y = Identity(s) }", [{"s": WORDS}, {"s": strings()}]),
    "Reshape": ("g (string[8] s) => (string[2, 4] y) { k = Constant<value_ints = [2, 4]>() y = Reshape(s, k) }", [{"s": WORDS}]),
    "Gather": ("g (string[n] s, int64[m] i) => (string[m] y) { y = Gather(s, i) }", [{"s": WORDS, "i": np.array([4, 0, -1])}]),
    "Concat": ("g (string[n] s, string[m] t) => (string[k] y) { y = Concat<axis = 0>(s, t) }", [{"s": WORDS, "t": WORDS[:3]}]),
    "Slice": (
        "g (string[n] s) => (string[m] y) { a = Constant<value_ints = [1]>() b = Constant<value_ints = [6]>() y = Slice(s, a, b) }",
        [{"s": WORDS}],
    ),
    "Transpose": ("g (string[2, n] s) => (string[n, 2] y) { y = Transpose(s) }", [{"s": WORDS.reshape(2, 4)}]),
    "Where": ("g (bool[n] c, string[n] s, string[1] t) => (string[n] y) { y = Where(c, s, t) }",
              [{"c": np.arange(8) % 2 == 0, "s": WORDS, "t": strings("zz")}]),
    "Equal": ("g (string[n] s, string[m] t) => (bool[k] y) { y = Equal(s, t) }",
              [{"s": WORDS, "t": WORDS[::-1].copy()}, {"s": WORDS, "t": strings("a")}]),
    "Shape": ("g (string[n] s) => (int64[1] y) { y = Shape(s) }", [{"s": WORDS}]),
    "Split": ("g (string[8] s) => (string[4] y, string[4] z) { y, z = Split(s) }", [{"s": WORDS}]),
    "Cast to numbers": ("g (string[n] s) => (float[n] y) { y = Cast<to = 1>(s) }", [{"s": strings("1.5", "-2e3", "0")}]),
    "Cast of integers": ("g (int64[n] s) => (string[n] y) { y = Cast<to = 8>(s) }", [{"s": np.array([1, -20, 0])}]),
    "constants": (
        'g (string[n] s) => (string[m] y) { k = Constant<value_strings = ["p", "é", ""]>() y = Concat<axis = 0>(s, k) }',
        [{"s": WORDS}, {"s": strings("é")}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRINGS)
def test_strings_are_what_onnxruntime_makes_of_them(name: str) -> None:
    text, calls = STRINGS[name]
    model = parse_model(HEAD.replace("17", "19" if name == "Equal" else "17") + text)
    module = tc.compile(model)

    for feeds in calls:
        for value, expected in zip(module.run(feeds).values(), by_runtime(model, feeds), strict=True):
            same(value, expected)
    moves = name not in ("Cast to numbers", "Cast of integers")
    assert bool(module.report().fallbacks) != moves


NEWER = {
    "StringConcat": ("g (string[n, 1] s, string[m] t) => (string[n, m] y) { y = StringConcat(s, t) }",
                     {"s": WORDS[:, None], "t": strings("ä", "")}),
    "StringSplit": ("g (string[n] s) => (string[n, k] y, int64[n] z) { y, z = StringSplit<delimiter = \",\", maxsplit = 2>(s) }",
                    {"s": strings("a,b,c,d", "", "ü,", "x")}),
    "RegexFullMatch": ("g (string[n] s) => (bool[n] y) { y = RegexFullMatch<pattern = \"[a-z]+\">(s) }",
                       {"s": strings("abc", "", "A", "é")}),
    "StringNormalizer": ("""g (string[n] s) => (string[m] y) {
                                y = StringNormalizer<case_change_action = "UPPER", is_case_sensitive = 1, stopwords = ["a"]>(s) }""",
                         {"s": strings("a", "b", "grüße", "A")}),
}  # fmt: skip


@pytest.mark.parametrize("name", NEWER)
def test_operators_that_look_into_strings(name: str) -> None:
    text, feeds = NEWER[name]
    model = parse_model(HEAD.replace("17", "20") + text)

    for value, expected in zip(tc.compile(model).run(feeds).values(), by_reference(model, feeds), strict=True):
        np.testing.assert_array_equal(value, expected)


MOVED = {
    "Tile": "k = Constant<value_ints = [2, 1]>() y = Tile(s, k)",
    "Expand": "k = Constant<value_ints = [2, 2, 3]>() y = Expand(s, k)",
    "GatherND": "k = Constant<value = int64[2, 1] {1, 0}>() y = GatherND(s, k)",
    "GatherElements": "k = Constant<value = int64[2, 1] {1, 0}>() y = GatherElements<axis = 1>(s, k)",
    "ScatterND": "k = Constant<value = int64[1, 1] {1}>() y = ScatterND(s, k, t)",
    "ScatterElements": "k = Constant<value = int64[1, 3] {1, 0, 1}>() y = ScatterElements<axis = 0>(s, k, t)",
    "Compress": "k = Constant<value = bool[2] {0, 1}>() y = Compress<axis = 0>(s, k)",
    "Loop": """n = Constant<value = int64 {2}>() k = Constant<value = bool {1}>() y = Loop(n, k, s) <
        body = b (int64 i, bool d, string[m, 3] z) => (bool e, string[l, 3] w) { e = Identity(d) w = Concat<axis = 0>(z, t) }>""",
    "If": """y = If(c) <then_branch = p () => (string[2, 3] u) { u = Identity(s) },
                        else_branch = q () => (string[1, 3] v) { v = Identity(t) }>""",
    "Unique": "y = Unique(s)",
    "SequenceAt": "q = SequenceConstruct(s, t) k = Constant<value = int64 {1}>() y = SequenceAt(q, k)",
    "Optional": "o = Optional(s) y = OptionalGetElement(o)",
}


@pytest.mark.parametrize("name", MOVED)
def test_strings_go_where_numbers_go(name: str) -> None:
    given = {"s": strings("a", "", "ü", "b", "a", "x y").reshape(2, 3), "t": strings("p", "q", "é").reshape(1, 3)}
    model = parsed("g (string[2, 3] s, string[1, 3] t, bool c) => (y) {" + MOVED[name] + "}")
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.STRING

    for c in (True, False):
        feeds = {**given, "c": np.array(c)}
        found = tc.compile(model).run(feeds)["y"]
        np.testing.assert_array_equal(found, by_reference(model, feeds)[0])


def test_padding_of_strings_is_empty() -> None:
    # ONNX's reference pads with the number 0.
    module = tc.compile(parsed("g (string[2] s) => (string[4] y) { k = Constant<value_ints = [1, 1]>() y = Pad(s, k) }"))

    same(module(strings("a", "b")), strings("", "a", "b", ""))


def test_arrays_of_numpys_strings_and_bytes_are_strings() -> None:
    module = tc.compile(parsed("g (string[n] s) => (string[n] y) { y = Identity(s) }"))

    same(module(np.array(["a", "éé"])), strings("a", "éé"))
    same(module(np.array([b"a", "é".encode()], object)), strings("a", "é"))
    with pytest.raises(InputError, match="an element is a int, must be a string"):
        module(np.array([1], object))
    with pytest.raises(InputError, match="dtype is float64, but must be one of strings"):
        module(np.zeros(2))
    with pytest.raises(InputError, match="is not UTF-8"):
        module(np.array([b"\xff"], object))


def test_sequences_of_strings() -> None:
    model = parsed("g (seq(string[a]) s, string[b] x) => (seq(string[a]) y) { y = SequenceInsert(s, x) }")
    given = [strings("a", ""), strings()]

    same(tc.compile(model)(given, strings("ö")), [*given, strings("ö")])


def test_any_packed_value_comes_back() -> None:
    table = StringTable()
    for kind, value in (("sequence", RAGGED), ("sequence", []), ("optional", None), ("optional sequence", None), ("tensor", THREE[0])):
        same(unpack_value(pack_value(value, kind, "f32", None, "v"), kind, "f32", None), value)
    text = [WORDS.reshape(2, 4), np.array("", object)]
    same(unpack_value(pack_value(text, "sequence", "string", table, "v"), "sequence", "string", table), text)
    for bad in ([3], [-2], [1, 1]):
        with pytest.raises(InputError, match="are not those of a"):
            unpack_value([np.zeros(4, np.float32), np.array(bad), np.array([2, 2])], "tensor", "f32", None)


# Broke: "strings are known only while a compiled module runs that takes or returns them".
@pytest.mark.parametrize("op", ["RegexFullMatch", "TfIdfVectorizer", "Cast"])
def test_strings_that_a_model_knows_are_looked_into_without_strings_around(op: str, tmp_path: Path) -> None:
    counted = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    attrs = {
        "RegexFullMatch": {"pattern": "1.*"},
        "TfIdfVectorizer": {**counted, "ngram_counts": [0], "ngram_indexes": [0, 1], "pool_strings": ["1.5", "-2"]},
        "Cast": {"to": onnx.TensorProto.FLOAT},
    }[op]
    graph = helper.make_graph(
        [helper.make_node(op, ["s"], ["y"], **attrs)],
        "g",
        [],
        [onnx.ValueInfoProto(name="y")],
        [helper.make_tensor("s", onnx.TensorProto.STRING, [3], [b"1.5", b"-2", b"16"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    expected = {"RegexFullMatch": [True, False, True], "TfIdfVectorizer": [1, 1], "Cast": [1.5, -2, 16]}[op]

    module = tc.compile(model)
    module.save(tmp_path / "m.tcm")

    np.testing.assert_array_equal(module(), expected)
    np.testing.assert_array_equal(tc.load(tmp_path / "m.tcm")(), expected)
