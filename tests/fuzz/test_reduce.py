"""Failing models are made small."""

from __future__ import annotations

import numpy as np
import onnx

from tc.fuzz.differential import Verdict
from tc.fuzz.reduce import Subject, describe, reduce_model, renamed

MODEL = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["" : 18]>
g (float[n,6] x, float[n,6] z, bool c) => (float[n,6] y, float[n,6] other) {
    a = Neg(x)
    b = Softplus(a)
    d = If(c) <then_branch = t () => (float[n,6] p) { q = Abs(b) p = Neg(q) }, else_branch = e () => (float[n,6] r) { r = Abs(b) }>
    other = Add(z, z)
    y = Add(d, z)
}
""")
SUBJECT = Subject(
    MODEL,
    {"x": np.full((4, 6), 0.3, np.float32), "z": np.ones((4, 6), np.float32), "c": np.array(True)},
)


def operators(subject: Subject) -> list[str]:
    return [node.op_type for node in subject.model.graph.node]


def test_only_the_node_that_fails_is_left_with_inputs_of_one_element() -> None:
    found, tried, taken = reduce_model(SUBJECT, lambda s: "Softplus" in operators(s))

    assert operators(found) == ["Softplus"]
    assert [v.size for v in found.feeds.values()] in ([1], [])
    assert tried >= taken > 3


def test_bodies_are_simplified() -> None:
    def fails(subject: Subject) -> bool:
        return any(inner.op_type == "Neg" for n in subject.model.graph.node for a in n.attribute for inner in a.g.node)

    found, _, _ = reduce_model(SUBJECT, fails)

    (node,) = (n for n in found.model.graph.node if n.op_type == "If")
    assert sorted(inner.op_type for a in node.attribute for inner in a.g.node) == ["Neg"] or len(found.model.graph.node) == 1


def test_what_always_fails_ends_and_what_never_fails_is_kept() -> None:
    kept, _, taken = reduce_model(SUBJECT, lambda s: False)

    assert kept is SUBJECT and taken == 0
    assert len(operators(reduce_model(SUBJECT, lambda s: True)[0])) == 1


def test_the_report_is_onnx_text_that_parses_back() -> None:
    text = describe(renamed(SUBJECT), Verdict("wrong", "1 instead of 2"))

    model, _, rest = text.partition("\n}\n\n")
    assert onnx.parser.parse_model(model + "\n}").graph.input[0].name == "_0"
    assert rest.endswith("wrong: 1 instead of 2")
