"""The order of passes as text, what is done around each of them, and what is said when one goes wrong."""

from __future__ import annotations

import numpy as np
import pytest

import tc
from tc.demo import MODEL_PATH
from tc.errors import ParseError, UserError, VerifyError
from tc.frontend.registry import import_model
from tc.ir.graph import Function
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ir.parser import parse_module
from tc.passes import pipeline
from tc.passes.manager import PASSES, Hooks, Pass, PassCall, Stopwatch, parse_pipeline, run_pipeline
from tc.passes.pipeline import DEFAULT, FINISH, STRICT, PassOptions

TEXT = """
@graph
def main(x: f32[4]):
    a: f32[4] = exp(x)
    b: f32[4] = neg(a)
    return b
"""


def names(calls: tuple[PassCall, ...]) -> list[str]:
    return [call.target.name for call in calls]


def drop_binding(module: IRModule) -> IRModule:
    """A pass with a mistake: the last result is used and no longer made."""
    return IRModule(tuple(replace(f, bindings=f.bindings[:-1]) if isinstance(f, Function) else f for f in module.functions))


def stumble(module: IRModule) -> IRModule:
    raise KeyError("what")


def test_the_usual_pipeline_is_a_text_that_parses_back() -> None:
    for each in (DEFAULT, STRICT):
        calls = parse_pipeline(str(each))

        assert calls == (*each.simplify, *each.narrow, *each.lay_out, *each.fuse, *each.lower)


def test_strict_leaves_out_what_computes_in_another_way() -> None:
    usual, strict = (names((*p.simplify, *p.narrow, *p.lay_out, *p.fuse, *p.lower)) for p in (DEFAULT, STRICT))

    inexact = {"find_idioms", "find_attention", "separate_attention", "use_winograd", "merge_scales", "separate_windows"}
    assert set(usual) - set(strict) == inexact
    assert "simplify_graph(exact=True)" in str(STRICT) and "split_phases(strict=True)" in str(STRICT)


def test_a_text_goes_over_lines_with_comments() -> None:
    calls = parse_pipeline("canonicalize,  # first\n  fuse_ops(max_ops=3),\n")

    assert [str(call) for call in calls] == ["canonicalize", "fuse_ops(max_ops=3)"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no_such_pass", "no pass 'no_such_pass'; known: .*fuse_ops"),
        ("fuse_ops(most=3)", "fuse_ops has no option 'most'; it has: .*max_ops"),
        ("canonicalize(1)", "options of canonicalize are written name=value"),
        ("fuse_ops(max_ops=x)", "x is no literal"),
        ("a b", "invalid syntax"),
        ("1 + 2", "expected a pass name"),
        ("a] + [b", "expected passes with commas between them"),
    ],
)
def test_what_is_no_pipeline_is_refused(text: str, words: str) -> None:
    with pytest.raises(ParseError, match=words):
        parse_pipeline(text)


def test_settings_reach_the_passes_that_have_an_option_of_that_name() -> None:
    seen: list[tuple[int, str]] = []

    def look(module: IRModule, *, lanes: int = 1, word: str = "own") -> IRModule:
        seen.append((lanes, word))
        return module

    call = PassCall(Pass("look", "graph", look, frozenset({"lanes", "word"})), ())
    module = parse_module(TEXT)

    run_pipeline(module, [call, PassCall(call.target, (("lanes", 8),))], {"lanes": 4, "block": 2})

    assert seen == [(4, "own"), (8, "own")]


def test_a_pass_that_breaks_the_program_is_named() -> None:
    broken = PassCall(Pass("drop_binding", "graph", drop_binding), ())
    module = parse_module(TEXT)

    with pytest.raises(VerifyError, match="after drop_binding: "):
        run_pipeline(module, [*parse_pipeline("canonicalize"), broken], hooks=Hooks(verify=True))


def test_a_pass_that_fails_is_named() -> None:
    failing = PassCall(Pass("stumble", "graph", stumble), ())

    with pytest.raises(VerifyError, match="stumble failed: KeyError: 'what'"):
        run_pipeline(parse_module(TEXT), [failing], hooks=Hooks(verify=True))
    with pytest.raises(KeyError) as caught:
        run_pipeline(parse_module(TEXT), [failing])

    assert getattr(caught.value, "__notes__", ["in stumble"]) == ["in stumble"]  # Python 3.11 has notes


def test_every_pass_of_a_model_leaves_programs_that_verify() -> None:
    shown: list[str] = []
    watch = Stopwatch()
    hooks = Hooks(True, frozenset({"fuse_ops", "lower_blocks", "schedule"}), shown.append, watch)

    module = tc.compile(str(MODEL_PATH), passes=PassOptions(hooks))

    kernels = len(module.report().kernels)
    assert [text.splitlines()[0] for text in shown] == ["# after fuse_ops", *["# after schedule", "# after lower_blocks"] * kernels]
    assert set(names(DEFAULT.simplify)) | set(names(parse_pipeline(FINISH))) | {"schedule"} <= set(watch.seconds)
    assert watch.calls["lower_blocks"] == kernels and watch.calls["canonicalize"] == 2


def test_other_passes_make_another_module_with_the_same_results(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 1, 8, 8)).astype(np.float32)
    usual = tc.compile(str(MODEL_PATH))

    apart = tc.compile(str(MODEL_PATH), passes=PassOptions(text="canonicalize, fuse_ops(max_ops=1)"))

    assert len(apart.report().kernels) > len(usual.report().kernels)
    np.testing.assert_allclose(apart(x), usual(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("canonicalize", "fuse_ops is missing"),
        ("fuse_ops, lower_blocks", "lower_blocks comes by itself"),
        ("fuse_ops, lower_primitives", "lower_primitives comes by itself"),
    ],
)
def test_passes_that_make_no_kernels_are_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        PassOptions(text=text).pipeline("default")


def test_the_stops_of_the_pipeline_are_one_program() -> None:
    imported = import_model(str(MODEL_PATH))
    target = tc.Target.of("x86-64-v3")
    model = pipeline.prepare_model(imported, target)

    lowered = pipeline.lower_model(pipeline.lay_out(model))

    settings = {"block": target.lanes(32), "lanes": target.lanes(32)}
    assert lowered.lowered.functions[0].name == run_pipeline(imported.module, str(DEFAULT), settings).functions[0].name
    assert len(lowered.lowered.prim_funcs) == len(run_pipeline(imported.module, str(DEFAULT), settings).prim_funcs) > 1


def test_every_registered_pass_says_what_it_does() -> None:
    assert len(PASSES) > 20
    assert all(each.run.__doc__ for each in PASSES.values())


def test_seconds_of_what_another_watch_times_are_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("tc.passes.manager.time.perf_counter", lambda: clock[0])

    def work(seconds: float) -> None:
        clock[0] += seconds

    watch = Stopwatch()
    beside = watch.uncounted(work)
    with watch.time("stage"):
        work(2.0)
        beside(5.0)
        work(1.0)

    assert watch.seconds == {"stage": 3.0}
