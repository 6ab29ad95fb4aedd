"""The programs that records are about, as text beside the database: what makes records of other models teach a cost model.

A file is named by the key of the program in it. The key is computed anew from what was read, so a file that says something else
than its name is not believed.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tc.errors import TcError
from tc.ir.loop import PrimFunc
from tc.ir.parser import parse_prim_func
from tc.ir.printer import print_ir
from tc.schedule.canonical import workload_key

TEXT_LIMIT_BYTES = 1 << 20


class WorkloadStore:
    """Lowered PrimFuncs by key, in the folder `FILE.workloads` beside the database FILE."""

    def __init__(self, database: Path) -> None:
        self.folder = database.with_name(f"{database.name}.workloads")

    def put(self, key: str, func: PrimFunc) -> None:
        """Keep a program with canonical names. One that is there stays."""
        path = self._path(key)
        if path.is_file():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(print_ir(func))
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def get(self, key: str) -> PrimFunc | None:
        """The program; None when it is not there, or not what its name says."""
        path = self._path(key)
        try:
            if path.stat().st_size > TEXT_LIMIT_BYTES:
                return None
            func = parse_prim_func(path.read_text(encoding="utf-8"), path.name)
            return func if workload_key(func) == key else None
        except (OSError, UnicodeDecodeError, TcError, RecursionError):
            return None

    def _path(self, key: str) -> Path:
        assert key.isalnum(), f"{key!r} is no key"
        return self.folder / f"{key}.tc"
