"""Operators of the user for one command: the Python that registers them, by file or by name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from tc.errors import TcError, UsageError


def import_operators(name: str) -> None:
    """Run `name`, a .py file or a module, which registers operators (`tc.op`); once for a process. UserError when it cannot be run."""
    try:
        if name.endswith(".py"):
            _import_file(Path(name))
        else:
            importlib.import_module(name)
    except TcError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's own code raises
        raise UsageError(f"--operators {name}: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> None:
    if path.stem in sys.modules:
        if getattr(sys.modules[path.stem], "__file__", None) != str(path.resolve()):
            raise UsageError(f"--operators {path}: a module called {path.stem} is there already; give the file another name")
        return
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None and spec.loader is not None, "a path that ends so is one of a module"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
