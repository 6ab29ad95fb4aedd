"""Who may import whom: the rooms of `tc` in their order, and what a module may import where."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tc"

# The rooms of the house, and the loose modules at its top. Each imports only from itself and from those before it.
# Modules inside one room may import each other as long as that makes no cycle.
ROOMS = (
    *("version", "error_codes", "errors", "files", "ir", "target", "te", "ops", "interp", "frontend", "cost", "schedule", "passes"),
    *("codegen", "runtime"),
    *("records", "check", "measure", "precision", "compiler", "stages", "fuzz", "autotune", "quantization", "demo"),
    *("", "onnx_backend", "cli", "__main__"),  # "" is tc/__init__.py, the public names
)
LOOSE = {"version", "error_codes", "errors", "files", "te", "compiler", "stages", "", "onnx_backend", "__main__"}

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


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def complain(found: list[Import]) -> None:
    assert not found, "\n" + "\n".join(map(str, found))


def test_every_module_has_its_room() -> None:
    rooms = {room_of(name) for name in MODULES}

    assert rooms == set(ROOMS)
    assert {room_of(name) for name, path in MODULES.items() if path.parent == PACKAGE} == LOOSE


@pytest.mark.parametrize("room", ROOMS)
def test_a_module_imports_only_from_rooms_before(room: str) -> None:
    allowed = ROOMS[: ROOMS.index(room) + 1]

    complain([f for f in WITHIN if room_of(f.importer) == room and room_of(imported_module(f)) not in allowed])


def test_a_class_has_a_name_of_its_own() -> None:
    """One word, one thing. Names with an underscore are private to their file; `If` is what both levels of IR call it."""
    places: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)

    twice = {name: modules for name, modules in places.items() if len(modules) > 1}

    assert twice == {"If": ["tc.ir.graph", "tc.ir.loop"]}


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by their names alone."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py") if not (path.parent / "__init__.py").exists()]

    assert len(set(names)) == len(names), {name for name in names if names.count(name) > 1}


def test_the_compiler_is_short() -> None:
    assert len((PACKAGE / "compiler.py").read_text(encoding="utf-8").splitlines()) < 200


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


def test_no_module_of_the_tests_hides_one_of_python() -> None:
    """Their folders are on the path of processes that tests start."""
    hidden = [path for path in Path(__file__).parent.rglob("*.py") if path.stem in sys.stdlib_module_names]

    assert hidden == []
