"""The object cache: whole entries or none, whatever happens to the folder."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from tc.runtime.cache_root import cache_path
from tc.runtime.object_cache import ObjectCache


def test_what_was_put_is_got(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)

    cache.put("abcdef", b"payload")

    assert cache.get("abcdef") == b"payload"
    assert cache.get("missing") is None


@pytest.mark.parametrize("damage", [b"", b"junk", None])
def test_a_damaged_entry_counts_as_missing_and_goes(tmp_path: Path, damage: bytes | None) -> None:
    cache = ObjectCache(tmp_path)
    cache.put("abcdef", b"payload" * 100)
    (entry,) = tmp_path.glob("*/*.tco")
    data = entry.read_bytes()
    entry.write_bytes(data[:-1] + b"x" if damage is None else damage)

    assert cache.get("abcdef") is None
    assert not entry.exists()


def test_the_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path, limit_bytes=2500)
    for k, age in enumerate((300, 200, 100)):
        cache.put(f"key{k}", bytes(1000))
        (entry,) = tmp_path.glob(f"*/key{k}.tco")
        os.utime(entry, (entry.stat().st_atime, entry.stat().st_mtime - age))

    cache.prune()

    assert [cache.get(f"key{k}") is not None for k in range(3)] == [False, True, True]


def test_a_folder_that_cannot_be_written_means_no_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    cache = ObjectCache(blocked / "objects")

    cache.put("abcdef", b"payload")
    cache.put("abcdeg", b"payload")

    assert cache.get("abcdef") is None
    assert len([r for r in caplog.records if "not cached" in r.message]) == 1


def test_the_environment_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TC_CACHE_DIR", "off")

    assert cache_path() is None
    assert ObjectCache().get("abcdef") is None


def _hammer(folder: str, seed: int) -> int:
    cache = ObjectCache(Path(folder), limit_bytes=40_000)
    wrong = 0
    for k in range(60):
        key = f"key{(k * seed) % 13:02d}"
        cache.put(key, key.encode() * 400)
        found = cache.get(key)
        wrong += found is not None and found != key.encode() * 400
        if k % 20 == 0:
            cache.prune()
    return wrong


@pytest.mark.parametrize("count", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_many_processes_never_see_a_wrong_entry(count: int, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # the processes need not import everything again
    with context.Pool(count) as pool:
        wrong = pool.starmap(_hammer, [(str(tmp_path), seed) for seed in range(1, count + 1)])

    assert sum(wrong) == 0
    assert not list(tmp_path.glob("*/.tmp-*"))
