"""The file of a database, and the database, that tests of records share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tc.records.database import Database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuned.db"


@pytest.fixture
def database(path: Path) -> Database:
    return Database(path)
