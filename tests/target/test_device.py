from __future__ import annotations

import ctypes.util
import json
import math
import multiprocessing
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

import tc
from tc.errors import UnsupportedError, UserError
from tc.ir.intrinsic import has_all_of_one
from tc.records.record import target_key
from tc.target import DeviceFacts, Target, detect, native_target, occupancy
from tc.target.device import DEVICE_TABLE, device_called, device_table, lacking, plain_name
from tc.target.machine import machine_fingerprint

DEMO = Path(tc.__file__).parent / "demo"
ARCHS = [f"{kind}:{arch}" for kind, arch in device_table()]


def facts_of(arch: str) -> DeviceFacts:
    return device_called("cuda", arch)


# -- the table


def test_every_entry_of_the_table_names_the_sources_of_its_numbers() -> None:
    entries = json.loads(DEVICE_TABLE.read_text())["devices"]

    assert [entry["name"] for entry in entries if not entry["source"] or not all(entry["source"].values())] == []
    assert len(entries) == len(ARCHS) == 9


@pytest.mark.parametrize(
    ("arch", "peaks"),
    [
        ("sm_75", {"f32": 8.1, "f16": 65, "i8": 130}),
        ("sm_80", {"f32": 19.5, "f16": 312, "bf16": 312, "tf32": 156, "i8": 624}),
        ("sm_86", {"f32": 31.2, "f16": 125, "bf16": 125, "tf32": 62.5, "i8": 250}),
        ("sm_89", {"f32": 30.3, "f16": 121, "tf32": 60, "i8": 242, "f8": 242}),
        ("sm_90", {"f16": 989.4, "bf16": 989.4, "tf32": 494.7, "i8": 1978.9, "f8": 1978.9}),
        ("gfx90a", {"f32": 23.95, "f16": 191.5, "bf16": 191.5, "i8": 191.5}),
        ("gfx942", {"f32": 163.4, "f16": 1307.4, "tf32": 653.7, "i8": 2614.9, "f8": 2614.9}),
    ],
)
def test_processors_times_rates_are_the_peaks_of_the_vendors_data_sheets(arch: str, peaks: dict[str, float]) -> None:
    facts = device_called("rocm" if arch.startswith("gfx") else "cuda", arch)

    found = {name: (facts.f32_flops_per_s if name == "f32" else facts.tensor_flops_per_s(name)) / 1e12 for name in peaks}

    assert found == pytest.approx(peaks, rel=0.015)
    assert facts.tensor_flops_per_s("f8") == 0 or "f8" in peaks


def test_an_architecture_has_the_features_of_those_before_it() -> None:
    order = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"]

    assert [[has_all_of_one(facts_of(arch).features, ((need,),)) for need in order] for arch in order] == [
        [column <= row for column in range(6)] for row in range(6)
    ]
    assert [facts_of(arch).copy_engines for arch in order] == [
        (), ("cp.async",), ("cp.async",), ("cp.async",), ("cp.async", "tma"), ("cp.async", "tma"),
    ]  # fmt: skip
    assert [arch for arch in order if facts_of(arch).has("wgmma")] == ["sm_90a"]


# -- occupancy


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks"),
    [
        # NVIDIA's calculator: registers fill the processor
        ("sm_80", 256, 32, 0, 8),
        ("sm_80", 256, 128, 0, 2),
        ("sm_80", 256, 255, 0, 1),
        ("sm_80", 1024, 64, 0, 1),
        ("sm_80", 1024, 65, 0, 0),  # 72 registers are given out, 1024 * 72 > 65536
        ("sm_80", 128, 168, 0, 3),  # 12 warps of 5376 registers, three in each quarter
        ("sm_89", 64, 200, 0, 4),  # two warps in each quarter
        ("sm_89", 64, 168, 0, 6),
        ("sm_80", 32, 40, 0, 32),  # 48 warps by registers, 32 blocks at most
        # blocks and threads
        ("sm_80", 32, 16, 0, 32),
        ("sm_86", 32, 16, 0, 16),
        ("sm_86", 1024, 32, 0, 1),  # 1536 threads
        ("sm_75", 1024, 32, 0, 1),
        ("sm_90", 1024, 32, 0, 2),
        # shared memory: 1 KB of each block is the system's from sm_80 on
        ("sm_80", 128, 32, 48 * 1024, 3),
        ("sm_80", 128, 32, 163 * 1024, 1),
        ("sm_80", 128, 32, 163 * 1024 + 1, 0),
        ("sm_86", 128, 32, 49 * 1024, 2),
        ("sm_86", 128, 32, 50 * 1024, 1),
        ("sm_75", 128, 32, 32 * 1024, 2),
        ("sm_90a", 384, 168, 227 * 1024, 1),
        ("sm_90a", 128, 32, 113 * 1024, 2),
        # what cannot run at all
        ("sm_80", 1025, 16, 0, 0),
        ("sm_80", 0, 16, 0, 0),
        ("sm_80", 32, 256, 0, 0),
    ],
)
def test_occupancy_follows_the_vendors_rules(arch: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    assert occupancy(threads, registers, shared, facts_of(arch)) == blocks


def test_amd_waves_follow_from_vector_registers() -> None:
    facts = device_called("rocm", "gfx90a")

    waves = [occupancy(256, registers, 0, facts) for registers in (32, 64, 65, 128, 168, 256, 512)]

    assert waves == [8, 8, 7, 4, 3, 2, 1]  # one of a block's four waves in each of the four units
    assert occupancy(64, 8, 33 * 1024, facts) == 1


# -- targets


@pytest.mark.parametrize("arch", ARCHS)
def test_a_device_target_prints_as_text_that_parses_back(arch: str) -> None:
    target = Target.parse(arch)
    changed = replace(target, device=replace(target.device, processors=7, features=(), tensor_flops_per_cycle=()), number=3)

    assert target.device == device_table()[target.kind, arch.partition(":")[2]]
    assert Target.parse(str(target)) == target
    assert Target.parse(str(changed)) == changed
    assert str(Target.parse(f"{arch}@x86-64-v3:cores=2")) == f"{arch}@x86-64-v3:cores=2"


@pytest.mark.parametrize("name", [field.name for field in fields(DeviceFacts) if field.name not in ("kind", "arch")])
def test_every_fact_can_be_changed_in_text(name: str) -> None:
    values = {"int": 12345, "float": math.pi * 1e9, "str": "other-1", "tuple[int, int, int]": (3, 2, 1), "tuple[str, ...]": ("sm_75", "x")}
    type_ = next(field.type for field in fields(DeviceFacts) if field.name == name)
    value = values.get(str(type_), (("f16", 1), ("i8", 2)))
    target = Target.parse("cuda:sm_80@x86-64-v3")
    changed = replace(target, device=replace(target.device, **{name: value}))

    back = Target.parse(str(changed))

    assert back == changed != target
    assert machine_fingerprint(back) == machine_fingerprint(changed) != machine_fingerprint(target)


def test_the_host_of_a_device_is_this_machine_unless_named() -> None:
    target = Target.parse("cuda:sm_80")

    assert target.host == native_target()
    assert (target.vector_bits, target.lanes(32)) == (native_target().vector_bits, native_target().lanes(32))
    assert Target.parse("cuda:sm_80@x86-64-v2").host == Target.parse("x86-64-v2")
    assert native_target().device is None and native_target().host == native_target()


def test_the_fingerprint_of_a_device_target_follows_its_architecture_and_its_host() -> None:
    target = Target.parse("cuda:sm_80@x86-64-v3")
    others = ["cuda:sm_90@x86-64-v3", "cuda:sm_90a@x86-64-v3", "cuda:sm_80@x86-64-v2", "opencl:generic@x86-64-v3", "x86-64-v3"]

    prints = {Target.parse(text).fingerprint() for text in others} | {target.fingerprint()}

    assert len(prints) == 6
    assert Target.parse("cuda:sm_80,processors=56@x86-64-v3:cores=1").fingerprint() == target.fingerprint()
    assert machine_fingerprint(Target.parse("cuda:sm_80,processors=56")) != machine_fingerprint(target)


def test_records_of_a_device_hold_on_any_host() -> None:
    keys = {target_key(Target.parse(text)) for text in ("cuda:sm_80@x86-64-v3", "cuda:sm_80@x86-64-v4:cores=7", "cuda:sm_80,number=1")}

    assert keys == {"cuda:sm_80"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cuda:sm_70", "unknown cuda device 'sm_70'; known are sm_75, sm_80, .*sm_90a"),
        ("opencl:sm_80", "unknown opencl device 'sm_80'; known are generic"),
        ("rocm", "no rocm device is looked for: kernels for rocm:gfx90a, rocm:gfx942 are written as text"),
        ("cuda:sm_80,wheels=4", "unknown fact 'wheels' of a cuda device; known are product, warp_size"),
        ("cuda:sm_80,processors", "'processors' is not of the form key=value"),
        ("cuda:sm_80,processors=many", "processors=many is not a number"),
        ("cuda:sm_80,processors=0", "processors is 0, must be a positive number"),
        ("cuda:sm_80,clock_hz=nan", "clock_hz is nan, must be a positive number"),
        ("cuda:sm_80,max_block=1+2", r"max_block is \(1, 2\), must be three positive numbers"),
        ("cuda:sm_80,tensor_flops_per_cycle=f64:3", "must be pairs of one of f16"),
        ("cuda:sm_80,number=one", "number=one is not the number of a device"),
        ("cuda:sm_80@cuda:sm_80", "'cuda:sm_80' is a device, must be a CPU"),
    ],
)
def test_bad_text_of_a_device_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Target.parse(text)


@pytest.mark.parametrize(
    "options", [{"kind": "cuda"}, {"device": facts_of("sm_80")}, {"kind": "opencl", "device": facts_of("sm_80")}, {"number": 1}]
)
def test_kind_and_device_of_a_target_must_fit(options: dict) -> None:
    with pytest.raises(UserError, match=r"^target: "):
        Target(**options)


# -- devices that are there


@pytest.fixture
def forgetful() -> Iterator[None]:
    detect.opencl_facts.cache_clear()
    detect.cuda_facts.cache_clear()
    yield
    detect.opencl_facts.cache_clear()
    detect.cuda_facts.cache_clear()


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((7, 5), "sm_75"), ((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 7), "sm_86"), ((8, 9), "sm_89"), ((9, 0), "sm_90a")],
)
def test_a_cuda_device_gets_the_nearest_architecture_with_all_its_instructions(capability: tuple[int, int], arch: str) -> None:
    assert detect.cuda_arch(*capability, "a device") == arch


@pytest.mark.parametrize("capability", [(7, 0), (10, 0), (12, 0)])
def test_a_cuda_device_of_another_family_is_refused(capability: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedError, match=rf"for a device, of compute capability {capability[0]}\.{capability[1]}; known are sm_75"):
        detect.cuda_arch(*capability, "a device")


@pytest.mark.parametrize(
    ("wanted", "there", "missing"),
    [
        ("sm_80", "sm_90a", ()),
        ("sm_75", "sm_75", ()),
        ("sm_90a", "sm_90", ("sm_90a", "wgmma")),
        (
            "sm_80",
            "sm_75",
            ("sm_80", "bf16", "cp.async", "max_shared_bytes_per_block=166912 (it has 65536)"),
        ),
        ("sm_80", "sm_86", ("max_shared_bytes_per_block=166912 (it has 101376)",)),
    ],
)
def test_what_a_device_lacks_of_what_code_may_use_is_told(wanted: str, there: str, missing: tuple[str, ...]) -> None:
    assert lacking(facts_of(wanted), facts_of(there)) == missing


def test_a_target_tells_what_this_machine_lacks_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tc.target._DETECTION", {"cuda": lambda number: facts_of("sm_86")})
    host = native_target()

    assert host.missing_here() == ()
    assert replace(host, features=(*host.features, "sve2")).missing_here() == ("sve2",)
    assert Target.parse("cuda:sm_86").missing_here() == ()
    assert Target.parse("cuda:sm_89,max_shared_bytes_per_block=65536").missing_here() == ("sm_89", "fp8")


def test_names_of_products_become_plain() -> None:
    assert plain_name("Intel(R) Xeon(R) @ 2.1GHz, x=1+1") == "Intel-R-Xeon-R-2.1GHz-x-1-1"
    assert plain_name("(?)") == "unnamed"


def _parse_in_child(text: str, answers: multiprocessing.Queue) -> None:
    try:
        answers.put(str(Target.parse(text)))
    except UserError as error:
        answers.put(str(error))


def test_an_opencl_device_tells_its_facts(forgetful: None) -> None:
    pytest.importorskip("pyopencl")
    target = Target.parse("opencl")

    device = detect.opencl_devices()[0]
    facts = target.device

    assert facts.processors == device.max_compute_units
    assert facts.max_shared_bytes_per_block == device.local_mem_size
    assert facts.max_threads_per_block == min(device.max_work_group_size, 1024)
    assert facts.has("fp64") == ("cl_khr_fp64" in device.extensions)
    assert Target.parse(str(target)) == target
    with pytest.raises(UserError, match="opencl: there is no device 99"):
        Target.parse("opencl:99")


def test_a_driver_that_fails_does_not_hide_the_devices_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cl = pytest.importorskip("pyopencl")

    def fail() -> list:
        raise cl.RuntimeError("out of everything")

    broken, empty = SimpleNamespace(get_devices=fail), SimpleNamespace(get_devices=list)
    there = detect.opencl_devices()
    whole = SimpleNamespace(get_devices=lambda: list(reversed(there)))
    monkeypatch.setattr(cl, "get_platforms", lambda: [broken, empty, whole])

    found = detect.opencl_devices()

    assert set(found) == set(there) and found[0] == there[0]
    monkeypatch.setattr(cl, "get_platforms", lambda: [broken, empty])
    with pytest.raises(UserError, match=r"opencl: no device is on this machine \(out of everything\); pip install"):
        detect.opencl_devices()


def test_a_forked_child_is_told_that_the_driver_does_not_work_there(forgetful: None) -> None:
    pytest.importorskip("pyopencl")
    Target.parse("opencl")
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    detect.opencl_facts.cache_clear()

    child = context.Process(target=_parse_in_child, args=("opencl", answers))
    child.start()
    answer = answers.get(timeout=60)
    child.join()

    assert "opencl: this process was forked from one that had used the opencl driver" in answer


@pytest.mark.parametrize(
    ("package", "text", "words"),
    [
        ("cuda.bindings", "cuda", r"cuda-bindings is not installed: pip install 'tc\[cuda\]'; without a device kernels can be written"),
        ("pyopencl", "opencl", r"pyopencl is not installed: pip install 'tc\[opencl\]'; without a device kernels can be written"),
    ],
)
def test_without_the_package_the_error_says_what_to_install(
    forgetful: None, monkeypatch: pytest.MonkeyPatch, package: str, text: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(UserError, match=words):
        Target.parse(text)


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="there is a driver")
def test_without_a_driver_the_error_says_how_to_name_a_device_that_is_elsewhere(forgetful: None) -> None:
    with pytest.raises(UserError, match=r"^cuda: .*; without a device .* --emit cuda -o FOLDER \(also sm_75, .*sm_90a\)"):
        Target.parse("cuda")


class FakeDriver:
    """A machine with one device, as the driver's functions tell it."""

    class CUresult(Enum):
        CUDA_SUCCESS = 0
        CUDA_ERROR_NO_DEVICE = 100

    facts: ClassVar[dict[str, int]] = {
        "COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132, "MAX_THREADS_PER_BLOCK": 1024,
        "MAX_THREADS_PER_MULTIPROCESSOR": 2048, "MAX_BLOCKS_PER_MULTIPROCESSOR": 32, "MAX_SHARED_MEMORY_PER_BLOCK": 49152,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
        "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024, "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536, "MAX_REGISTERS_PER_BLOCK": 65536,
        "L2_CACHE_SIZE": 62914560, "CLOCK_RATE": 1980000, "MEMORY_CLOCK_RATE": 3201000, "GLOBAL_MEMORY_BUS_WIDTH": 6144,
    }  # fmt: skip
    CUdevice_attribute = SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{name}": name for name in facts})

    def done(self, value: object) -> tuple[object, object]:
        return self.CUresult.CUDA_SUCCESS, value

    def cuDeviceGetCount(self) -> tuple[object, object]:
        return self.done(1)

    def cuDeviceGet(self, number: int) -> tuple[object, object]:
        return self.done(number)

    def cuDeviceGetName(self, size: int, device: object) -> tuple[object, object]:
        return self.done(b"NVIDIA H200\0\0\0")

    def cuDeviceGetAttribute(self, name: str, device: object) -> tuple[object, object]:
        return self.done(self.facts[name])

    def cuDeviceTotalMem(self, device: object) -> tuple[object, object]:
        return self.done(150754820096)


def test_a_cuda_device_tells_its_facts(forgetful: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "cuda_driver", FakeDriver)

    target = Target.parse("cuda@x86-64-v3:cores=2")

    assert str(target) == (
        "cuda:sm_90a,product=NVIDIA-H200,clock_hz=1980000000.0,memory_bytes=150754820096,memory_bytes_per_s=4916736000000.0,"
        "l2_bytes=62914560@x86-64-v3:cores=2"
    )
    with pytest.raises(UserError, match="cuda: there is no device 1; there is only device 0"):
        Target.parse("cuda:1")


def test_what_the_driver_refuses_is_an_error_with_its_name(forgetful: None, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(detect, "cuda_driver", lambda: driver)
    monkeypatch.setattr(driver, "cuDeviceTotalMem", lambda device: (driver.CUresult.CUDA_ERROR_NO_DEVICE, None))

    with pytest.raises(UserError, match="cuda: the driver says CUDA_ERROR_NO_DEVICE"):
        Target.parse("cuda")
