"""Who may import whom: the layers of `tc`, and what a module may import where."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tc"

# Each layer and the layers it may import, with all that those may. A layer stands above the ones that use it.
# Modules inside one layer may import each other as long as that makes no cycle.
LAYERS: dict[str, tuple[str, ...]] = {
    "version": (),
    "errors": (),
    "target": ("errors", "version"),
    "ir": ("errors", "version"),
    "te": ("ir",),
    "ops": ("te",),
    "frontend": ("ops",),
    "schedule": ("te", "target"),
    "interp": ("ops", "schedule"),
    "cost": ("schedule",),
    "passes": ("interp",),
    "codegen": ("passes",),
    "runtime": ("codegen",),
    "records": ("codegen",),
    "check": ("interp",),
    "measure": ("runtime",),
    "compiler": ("frontend", "runtime", "records", "check"),
    "stages": ("compiler",),
    "fuzz": ("compiler",),
    "autotune": ("compiler", "cost", "measure"),
    "demo": ("stages",),
    "": ("stages", "autotune"),  # tc/__init__.py, the public names
    "cli": ("", "fuzz", "demo"),
    "__main__": ("cli",),
}

# These take long to import, or may be absent: they may be imported inside functions.
LATE = {"cuda", "dask", "distributed", "matplotlib", "networkx", "onnx", "onnxruntime", "openvino", "pyopencl", "scipy", "torch", "xgboost"}
# These come with extras only, so no module may need them just to be imported.
OPTIONAL = {"cuda", "dask", "distributed", "matplotlib", "onnxruntime", "openvino", "pyopencl", "torch"}


@dataclass(frozen=True)
class Import:
    """One imported name, `module` or `module.name`, and where it stands."""

    importer: str
    module: str
    name: str
    line: int
    in_function: bool
    in_try: bool
    relative: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line}: imports {self.module}" + (f".{self.name}" if self.name else "")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.Module, importer: str) -> list[Import]:
    found: list[Import] = []

    def visit(node: ast.AST, in_function: bool, in_try: bool) -> None:
        where = {"importer": importer, "in_function": in_function, "in_try": in_try}
        match node:
            case ast.Import(names=names):
                found.extend(Import(module=a.name, name="", line=node.lineno, relative=False, **where) for a in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                for alias in names:
                    found.append(
                        Import(module=module or "", name=alias.name, line=node.lineno, relative=level > 0, **where)
                    )
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                in_function = True
            case ast.Try():
                in_try = True
        for child in ast.iter_child_nodes(node):
            visit(child, in_function, in_try)

    visit(tree, in_function=False, in_try=False)
    return found


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
IMPORTS = [
    found for name, path in MODULES.items() for found in imports_of(ast.parse(path.read_text(encoding="utf-8")), name)
]
WITHIN = [found for found in IMPORTS if found.module.split(".")[0] == "tc"]


def imported_module(found: Import) -> str:
    """The module that really is imported: `from tc.ir import expr` imports tc.ir.expr where that is a module."""
    inner = f"{found.module}.{found.name}"
    return inner if inner in MODULES else found.module


def layer_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def reachable(layer: str) -> set[str]:
    below = {layer}
    for allowed in LAYERS[layer]:
        below |= reachable(allowed)
    return below


def complain(found: list[Import]) -> None:
    assert not found, "\n" + "\n".join(map(str, found))


def test_every_module_belongs_to_a_layer() -> None:
    unknown = {name for name in MODULES if layer_of(name) not in LAYERS}

    assert not unknown


def test_a_layer_lists_only_layers_above_it() -> None:
    seen: set[str] = set()
    for layer, allowed in LAYERS.items():
        assert seen.issuperset(allowed), layer
        seen.add(layer)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_module_imports_only_from_layers_above(layer: str) -> None:
    allowed = reachable(layer)

    complain([f for f in WITHIN if layer_of(f.importer) == layer and layer_of(imported_module(f)) not in allowed])


def test_imports_make_no_cycle() -> None:
    graph = networkx.DiGraph((f.importer, imported_module(f)) for f in WITHIN if f.importer != imported_module(f))

    cycles = [sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1]

    assert not cycles


def test_imports_of_tc_stand_at_the_top() -> None:
    complain([f for f in WITHIN if f.in_function])


def test_only_heavy_or_optional_packages_are_imported_late() -> None:
    complain([f for f in IMPORTS if f.in_function and f.module.split(".")[0] not in LATE | {"tc"}])


def test_optional_packages_are_not_needed_at_import() -> None:
    complain([f for f in IMPORTS if f.module.split(".")[0] in OPTIONAL and not f.in_function and not f.in_try])


def test_imports_are_absolute_and_name_what_they_take() -> None:
    complain([f for f in IMPORTS if f.relative or f.name == "*"])


def test_a_late_import_and_its_place_are_seen() -> None:
    text = "import a\ntry:\n    import b\nexcept ImportError:\n    pass\ndef f():\n    from .c import *\n"

    first, second, third = imports_of(ast.parse(text), "tc.x")

    assert (first.module, first.in_function, first.in_try) == ("a", False, False)
    assert (second.module, second.in_try) == ("b", True)
    assert (third.module, third.name, third.in_function, third.relative) == ("c", "*", True, True)
