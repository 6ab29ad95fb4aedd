"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tc.files import whole_file


def test_a_file_appears_at_the_end_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "f.bin"
    with whole_file(path) as unfinished:
        unfinished.write_bytes(b"one")
        assert not path.exists() and unfinished.suffix == ".bin"
    path.chmod(0o640)

    with whole_file(path) as unfinished:
        unfinished.write_bytes(b"two")

    assert path.read_bytes() == b"two" and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["f.bin"]


def test_what_raises_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one")

    with pytest.raises(ZeroDivisionError), whole_file(path) as unfinished:
        unfinished.write_bytes(b"two")
        raise ZeroDivisionError

    assert path.read_bytes() == b"one" and os.listdir(tmp_path) == ["f"]


def test_one_inside_another_and_long_names(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)
    with whole_file(path) as outer, whole_file(outer) as inner:
        inner.write_bytes(b"one")

    assert path.read_bytes() == b"one"


# Broke: links and devices were replaced by files, as root even /dev/null.
def test_a_link_is_followed_and_what_is_no_file_stays(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    with whole_file(tmp_path / "link") as unfinished:
        unfinished.write_bytes(b"one")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"one"

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is no file"), whole_file(tmp_path / "pipe"):
        raise AssertionError
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with pytest.raises(IsADirectoryError), whole_file(tmp_path):
        raise AssertionError
