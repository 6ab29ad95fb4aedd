from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tc.errors import UserError
from tc.target import Target, _with_caches, available_cores, available_cpus, host, native_target, widest_vector_bits
from tc.target.tile_permission import may_use_tiles

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")


@pytest.mark.parametrize(
    ("level", "bits", "registers"), [("x86-64-v2", 128, 16), ("x86-64-v3", 256, 16), ("x86-64-v4", 512, 32)]
)
def test_x86_levels_have_their_vectors(level: str, bits: int, registers: int) -> None:
    target = Target.parse(level)

    assert (target.vector_bits, target.num_vector_registers) == (bits, registers)
    assert target.lanes(32) == bits // 32
    assert target.has("fma") == (level != "x86-64-v2")


@pytest.mark.parametrize("text", ["native", "cpu", *LEVELS, "x86-64-v3:cores=7,l2=1M", "native:vector_bits=128"])
def test_text_round_trips(text: str) -> None:
    target = Target.parse(text)

    assert Target.parse(str(target)) == target


def test_levels_print_as_their_names() -> None:
    assert str(Target.parse("x86-64-v4:cores=3")) == "x86-64-v4:cores=3"


def test_features_given_alone_decide_on_the_vectors() -> None:
    v3 = "+".join(Target.parse("x86-64-v3").features)

    assert Target.parse(f"cpu:name=haswell,features={v3}").vector_bits == 256
    assert Target.parse("native:features=sse2").vector_bits == 128


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sparc", "unknown target 'sparc'; known are native, x86-64-v2"),
        ("native:cores", "'cores' is not of the form key=value"),
        ("native:cores=", "'cores=' is not of the form key=value"),
        ("native:cores=many", "cores=many is not a number"),
        ("native:wheels=4", "unknown fact 'wheels'; known are name, features, vector_bits"),
        ("native:cores=0", "cores is 0, must be at least 1"),
        ("x86-64-v3:vector_bits=512", "vector_bits is 512, but the features allow 256"),
        ("x86-64-v4:vector_bits=100", "vector_bits is 100, must be 128, 256 or 512"),
    ],
)
def test_bad_text_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Target.parse(text)


def test_fingerprint_follows_code_facts_only() -> None:
    target = Target.parse("x86-64-v4")

    assert target.fingerprint() == replace(target, cores=64, l2_bytes=1 << 22).fingerprint()
    assert target.fingerprint() != replace(target, vector_bits=256).fingerprint()
    assert target.fingerprint() != Target.parse("x86-64-v3").fingerprint()


def test_native_has_the_host_features() -> None:
    target = native_target()

    refused = () if may_use_tiles() else tuple(name for name in llvm.get_host_cpu_features() if name.startswith("amx-"))
    assert target.features == tuple(sorted(name for name, on in llvm.get_host_cpu_features().items() if on and name not in refused))
    assert target.vector_bits == widest_vector_bits(target.features)
    assert target.cores == available_cores()


@pytest.mark.parametrize("granted", [True, False])
def test_tile_registers_are_there_only_with_the_systems_leave(monkeypatch: pytest.MonkeyPatch, granted: bool) -> None:
    there = {"amx-tile": True, "amx-int8": True, "avx2": True}
    monkeypatch.setattr(host.llvm, "get_host_cpu_features", lambda: there)
    monkeypatch.setattr(host, "may_use_tiles", lambda: granted)

    assert host.host_features() == (("amx-int8", "amx-tile", "avx2") if granted else ("avx2",))


@pytest.mark.parametrize("text", ["native", *LEVELS])
def test_llvm_knows_every_feature_name(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    llvm.initialize_native_target()
    target = Target.parse(text)

    llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu=target.cpu, features=target.llvm_features
    )

    assert capfd.readouterr().err == ""


def test_what_the_cpu_name_implies_is_off_without_its_flag() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = """
        define <16 x float> @add(<16 x float> %a, <16 x float> %b) {
          %sum = fadd <16 x float> %a, %b
          ret <16 x float> %sum
        }"""
    avx2_features = Target.parse("x86-64-v3").features

    def assembly(target: Target) -> str:
        machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
            cpu=target.cpu, features=target.llvm_features
        )
        return machine.emit_assembly(llvm.parse_assembly(text))

    assert "zmm" not in assembly(Target(cpu="icelake-server", features=avx2_features, vector_bits=256))
    assert "zmm" in assembly(replace(Target.parse("x86-64-v4"), cpu="icelake-server"))


def test_avx512_without_its_byte_instructions_counts_as_256_bits() -> None:
    assert widest_vector_bits(("avx", "avx2", "avx512f", "avx512cd")) == 256
    assert widest_vector_bits(("avx",)) == 128


def test_available_cpus_follows_the_affinity_mask() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})

        assert (available_cpus(), available_cores()) == (1, 1)
    finally:
        os.sched_setaffinity(0, allowed)


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 0.5),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/x\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/gone\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    write_tree(tmp_path, files)

    assert host._cgroup_quota(tmp_path / "proc", tmp_path / "sys") == quota


def test_a_quota_below_one_cpu_still_leaves_one() -> None:
    assert host._within_quota(8, 0.5) == 1
    assert host._within_quota(8, 2.9) == 2
    assert host._within_quota(2, 16.0) == 2


def test_cache_sizes_come_from_the_kernel(tmp_path: Path) -> None:
    for index, (level, kind, size) in enumerate([(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2M")]):
        write_tree(
            tmp_path / f"index{index}",
            {"level": f"{level}\n", "type": f"{kind}\n", "size": f"{size}\n", "coherency_line_size": "128\n"},
        )

    caches = host.host_caches(tmp_path)

    assert (caches.sizes, caches.line_bytes) == ({1: 48 << 10, 2: 2 << 20}, 128)
    target = _with_caches(Target(), caches)
    assert (target.l1_bytes, target.l2_bytes, target.l3_bytes, target.cache_line_bytes) == (48 << 10, 2 << 20, 0, 128)


def test_without_a_description_of_caches_the_defaults_stay(tmp_path: Path) -> None:
    assert _with_caches(Target(), host.host_caches(tmp_path)) == Target()
