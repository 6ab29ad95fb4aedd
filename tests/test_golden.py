"""Golden files: what the compiler makes of small programs, as text.

`graph`, `loop`, `schedule`: a pass or a schedule, the program before, the program after. Each half parses, verifies and prints back
unchanged; the pass turns one into the other; and both compute the same on random inputs, which keeps `pytest --update-golden` from
blessing a wrong answer. Read the diff after updating.

`schedules`: for one kernel each, the steps that the rules choose on fixed targets, and the loops that come of them, before anything is
unrolled. `networks`: the kernels that a small network is cut into, and where its values lie in memory. `llvm`: the text that a construct
of a loop program is emitted as, which is also run. Such a file begins with the program, a graph or a PrimFunc; what follows the first
line of dashes is written by `pytest --update-golden`. To pin another program, write a file that has nothing else, and update. One that
begins with `# steps only` gets no loops, and two targets, or those that lines such as `# on x86-64-v4` name; a line such as
`# point {"matmul/pack_lhs": true}` answers what rules leave open.

A literal too long to be written out is named by its shape in the program before, `const('random 3x1x5', f32[3, 1, 5])`; what a pass
makes of it has the name that the printer gives it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from tc.codegen.llvm.emitter import emit_prim_func
from tc.compiler import run_stages
from tc.frontend.registry import import_model
from tc.interp import run_function, run_prim_func
from tc.ir.expr import Var
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.parser import parse_module
from tc.ir.print_plan import print_plan
from tc.ir.printer import print_ir
from tc.ir.structural import first_difference
from tc.ir.types import TensorType
from tc.ir.verify import verify
from tc.passes.manager import run_pipeline
from tc.passes.pipeline import finish_loops, lay_out, lower_model, prepare_model  # and all passes are registered
from tc.schedule.knobs import follow
from tc.schedule.rules import Scheduled, apply_rules
from tc.schedule.step import Trace
from tc.target import Target
from tests.golden_files import FOLDER, TARGETS, Literals, check_text, narrow
from tests.ops.kernels import run

PASSES = sorted(FOLDER.rglob("*.tc"))
SCHEDULES, NETWORKS, KERNELS = (sorted((FOLDER / kind).glob("*.txt")) for kind in ("schedules", "networks", "llvm"))
SEPARATOR = "# -----\n"
DASHES = "# -----"
STEPS_ONLY = "# steps only\n"
POINT = "# point "
ON = "# on "
DIM = 5  # the size of every symbolic dim when programs are run
SIZE = 21  # and when emitted code is run
TOLERANCES = {2: 1e-2, 4: 1e-6, 8: 1e-14}  # of emitted code, by the size of a number


def apply(header: str, module: IRModule) -> IRModule:
    """What the first line of a golden file asks for."""
    kind, _, text = header.removeprefix("# ").partition(": ")
    if kind == "pass":
        return run_pipeline(module, text.strip())
    assert kind == "schedule", f"unknown header {header!r}"
    trace = Trace.from_json(json.dumps({"version": 1, "steps": json.loads(text)}))
    return IRModule(tuple(trace.apply(f) if isinstance(f, PrimFunc) else f for f in module.functions), module.entry)


def check_well_formed(module: IRModule) -> None:
    for func in module.functions:
        verify(func)


def results_of(module: IRModule) -> dict[str, list[np.ndarray]]:
    """What every function of the module computes on fixed random inputs, by its name."""
    found: dict[str, list[np.ndarray]] = {}
    for func in module.functions:
        rng = np.random.default_rng(1)
        if isinstance(func, PrimFunc):
            arrays = [_random(rng, TensorType(b.shape, b.dtype)) for b in func.inputs]
            found[func.name] = list(run_prim_func(func, arrays, [DIM] * len(func.dims)))
        else:
            inputs = [_random(rng, p.type) for p in func.params if isinstance(p.type, TensorType)]
            found[func.name] = list(run_function(module, func.name, inputs))
    return found


def assert_same_results(before: IRModule, after: IRModule) -> None:
    """Each function of `before` is there in `after` and computes the same; others, and workspaces behind the results, may come along."""
    found = results_of(after)
    for name, old in results_of(before).items():
        new = found[name]
        assert old and [array.dtype for array in new[: len(old)]] == [array.dtype for array in old]
        for want, got in zip(old, new[: len(old)], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def _random(rng: np.random.Generator, type_: TensorType) -> np.ndarray:
    shape = type_.static_shape or tuple(DIM if str(d).isidentifier() else int(str(d)) for d in type_.shape)
    if type_.dtype.is_float:
        return rng.standard_normal(shape).astype(type_.dtype.numpy)
    return rng.integers(0, 3, shape).astype(type_.dtype.numpy)


def assert_same_text(module: IRModule, text: str, literals: Literals) -> None:
    assert print_ir(module, literals).strip() == text.strip()


@pytest.mark.parametrize("path", PASSES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_golden(path: Path, update_golden: bool) -> None:
    header, _, rest = path.read_text().partition("\n")
    before_text, _, after_text = rest.partition(SEPARATOR)
    literals = Literals()
    before = parse_module(before_text, literals, filename=str(path))
    check_well_formed(before)
    assert_same_text(before, before_text, literals)

    after = apply(header, before)

    check_well_formed(after)
    assert_same_results(before, after)
    found = print_ir(after, literals).strip()  # names the literals that the pass has made
    if update_golden:
        path.write_text(f"{header}\n{print_ir(before, literals).strip()}\n{SEPARATOR}{found}\n")
        return
    expected = parse_module(after_text, literals, filename=str(path))
    assert_same_text(expected, after_text, literals)
    assert first_difference(after, expected) is None, found


# -- schedules


def scheduled(program: str, target: Target) -> list[Scheduled]:
    """By the rules, and the answers of a line `# point {...}`; of a graph, whatever kernels the passes make of it."""
    point = next((json.loads(line.removeprefix(POINT)) for line in program.splitlines() if line.startswith(POINT)), {})
    module = parse_module(program, Literals())
    if module.graph_functions:
        module = lower_model(lay_out(prepare_model(import_model(module), target))).lowered
    return [apply_rules(func, target, follow(point)) for func in module.prim_funcs]


def describe(kernel: Scheduled, *, with_loops: bool) -> str:
    """The rule, what it left open, its steps, and the loops."""
    verify(kernel.func)
    knobs = [f"# {each.knob.name}: {each.value}, of {len(each.knob.options)}" for each in kernel.choices]
    loops = [narrow(print_ir(kernel.func))] if with_loops else []
    return "\n".join([f"# {kernel.rule}", *knobs, str(kernel.trace) or "# as written", *loops, ""])


@pytest.mark.parametrize("path", SCHEDULES, ids=lambda path: path.stem)
def test_schedule(path: Path, update_golden: bool) -> None:
    program = path.read_text().partition(DASHES)[0]
    brief = program.startswith(STEPS_ONLY)
    named = [line.removeprefix(ON) for line in program.splitlines() if line.startswith(ON)]
    sections: dict[str, str] = {}

    for name in named or (("x86-64-v3", "x86-64-v4") if brief else TARGETS):
        text = "\n".join(describe(kernel, with_loops=not brief) for kernel in scheduled(program, TARGETS[name]))
        same = next((other for other, known in sections.items() if known == text), None)
        sections[name] = text if same is None else f"# as on {same}\n"

    found = program + "".join(f"{DASHES} {name}\n{text}" for name, text in sections.items())
    check_text(path, found, update_golden)


# -- networks


@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.stem)
def test_fusion_and_plan(path: Path, update_golden: bool) -> None:
    network = path.read_text().partition(DASHES)[0]

    stages = run_stages(parse_module(network, Literals()), TARGETS["x86-64-v4"])

    for module in (stages.graph, stages.lowered, stages.module):
        verify(module)
    found = f"{network}{DASHES} fused\n{print_ir(stages.graph)}{DASHES} plan\n{print_plan(stages.plan)}"
    check_text(path, found, update_golden)


# -- emitted text


def normalized(text: str) -> str:
    """The same module with the numbers of local names, within each function, by their order, and declarations in alphabetical order."""
    definitions, numbers = [], dict[str, str]()

    def renamed(found: re.Match[str]) -> str:
        name, number = found.groups()
        return name + numbers.setdefault(number, str(len(numbers)))

    for line in text.strip().splitlines():
        if line.startswith("define "):
            numbers.clear()
        definitions.append(re.sub(r"(%[a-zA-Z_]+\.?)(\d+)\b", renamed, re.sub(r"^([a-z]+)(\d+)(?=:$)", renamed, line)))
    body = [line for line in definitions if not line.startswith("declare ")]
    return "\n".join([*body, *sorted(set(definitions) - set(body))]) + "\n"


def emitted(func: PrimFunc, features: tuple[str, ...]) -> str:
    text = normalized(emit_prim_func(func, "kernel", features).ir_text)
    llvm.parse_assembly(text).verify()
    return text


def assert_computes_its_meaning(func: PrimFunc) -> None:
    """What runs on this machine is what the reference interpreter computes, so that an update blesses no wrong text."""
    arrays, dims = random_inputs(func), [SIZE] * len(func.dims)
    expected = run_prim_func(func, arrays, dims)
    for want, got in zip(expected, run(func, arrays, tuple(dims)), strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=TOLERANCES.get(want.itemsize, 1e-6))


def random_inputs(func: PrimFunc) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = []
    for buffer in func.inputs:
        shape = tuple(SIZE if isinstance(dim, Var) else int(dim) for dim in buffer.shape)  # type: ignore[call-overload]
        values = rng.normal(size=shape) if buffer.dtype.is_float else rng.integers(1, 6, shape)
        arrays.append(np.abs(values).astype(buffer.dtype.numpy))
    return arrays


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_emission(path: Path, update_golden: bool) -> None:
    program = path.read_text().partition(DASHES)[0]
    (func,) = parse_module(program).prim_funcs
    verify(func)
    assert_computes_its_meaning(finish_loops(func))
    texts: dict[str, list[str]] = {}

    for name, target in TARGETS.items():
        texts.setdefault(emitted(finish_loops(func, threads=target.cores), target.features), []).append(name)

    check_text(path, program + "".join(f"{DASHES} {', '.join(names)}\n{text}" for text, names in texts.items()), update_golden)


def test_there_are_golden_files() -> None:
    assert len(PASSES) >= 34 and len(SCHEDULES) >= 80 and len(NETWORKS) >= 6 and len(KERNELS) >= 39
