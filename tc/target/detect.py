"""Devices that are there: asked of their drivers, which come with optional packages, and only when a target names them.

A driver does not survive a fork: the child of a process that has used one gets an error in words instead of a hang.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import cache
from typing import Any

from tc.errors import TargetError, UnsupportedError
from tc.target.device import DeviceFacts, device_called, known_archs, plain_name

_MOST_THREADS = 1024
"""Threads of a block, on whatever device: what kernels are generated for."""

_used_in: dict[str, int] = {}
"""Kind of device -> the process that first used its driver."""


def refuse_forked_child(kind: str) -> None:
    """Note that this process uses the driver for `kind`; UserError in the child of a process that did before it forked."""
    if _used_in.setdefault(kind, os.getpid()) != os.getpid():
        raise TargetError(
            f"{kind}: this process was forked from one that had used the {kind} driver, which does not work in the child; "
            "start it afresh (multiprocessing's 'spawn' or 'forkserver'), or fork before the first use"
        )


# -- CUDA


def cuda_driver() -> Any:
    """The module `cuda.bindings.driver`, initialized. UserError, with what to do, where there is no driver or no package for it."""
    refuse_forked_child("cuda")
    try:
        from cuda.bindings import driver
    except ImportError:
        raise TargetError(f"cuda: the package cuda-bindings is not installed: pip install 'tc[cuda]'; {_ELSEWHERE}") from None
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:
        raise TargetError(f"cuda: NVIDIA's driver (libcuda) is not on this machine; {_ELSEWHERE}") from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise TargetError(f"cuda: the driver does not start ({status.name}); {_ELSEWHERE}")
    return driver


_ELSEWHERE = (
    "without a device kernels can be written as text for an architecture: tc compile MODEL --target cuda:sm_90 --emit cuda -o FOLDER "
    f"(also {', '.join(arch for arch in known_archs('cuda') if arch != 'sm_90')})"
)


def cuda_count() -> int:
    """How many CUDA devices there are. UserError without a driver."""
    driver = cuda_driver()
    return int(_checked(driver, driver.cuDeviceGetCount()))


def cuda_driver_name() -> str:
    """What runs on CUDA devices here: the newest version of CUDA that the driver knows. UserError without a driver."""
    driver = cuda_driver()
    version = int(_checked(driver, driver.cuDriverGetVersion()))
    return f"CUDA {version // 1000}.{version % 1000 // 10}"


@cache
def cuda_facts(number: int = 0) -> DeviceFacts:
    """The facts of a CUDA device of this machine: those of its architecture, and what the driver says of it.

    UserError when it is not there, UnsupportedError when its architecture is not in the table.
    """
    driver = cuda_driver()
    count = cuda_count()
    if number >= count:
        raise TargetError(f"cuda: there is no device {number}; {_numbers(count)}")
    device = _checked(driver, driver.cuDeviceGet(number))
    name = _checked(driver, driver.cuDeviceGetName(128, device)).split(b"\0")[0].decode(errors="replace")

    def ask(attribute: str) -> int:
        number_of = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}")
        return int(_checked(driver, driver.cuDeviceGetAttribute(number_of, device)))

    usual = device_called("cuda", cuda_arch(ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR"), name))
    memory = int(_checked(driver, driver.cuDeviceTotalMem(device)))
    bandwidth = 2e3 * ask("MEMORY_CLOCK_RATE") * ask("GLOBAL_MEMORY_BUS_WIDTH") / 8  # two transfers a clock of so many kHz
    asked: dict[str, Any] = {field: ask(attribute) for field, attribute in _CUDA_ATTRIBUTES.items()}
    clock = 1e3 * ask("CLOCK_RATE")
    return dataclasses.replace(
        usual, product=plain_name(name), memory_bytes=memory, **asked,
        clock_hz=clock or usual.clock_hz, memory_bytes_per_s=bandwidth or usual.memory_bytes_per_s,
    )  # fmt: skip


_CUDA_ATTRIBUTES = {
    "processors": "MULTIPROCESSOR_COUNT",
    "max_threads_per_block": "MAX_THREADS_PER_BLOCK",
    "max_threads_per_processor": "MAX_THREADS_PER_MULTIPROCESSOR",
    "max_blocks_per_processor": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "static_shared_bytes_per_block": "MAX_SHARED_MEMORY_PER_BLOCK",
    "max_shared_bytes_per_block": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "shared_bytes_per_processor": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "reserved_shared_bytes_per_block": "RESERVED_SHARED_MEMORY_PER_BLOCK",
    "registers_per_processor": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "max_registers_per_block": "MAX_REGISTERS_PER_BLOCK",
    "l2_bytes": "L2_CACHE_SIZE",
}


def cuda_arch(major: int, minor: int, name: str) -> str:
    """The entry of the table for a compute capability: its own, with all of its instructions, else the nearest before it of the same major
    number, whose binaries it runs. UnsupportedError when there is none."""
    for lower in range(minor, -1, -1):
        for arch in (f"sm_{major}{lower}a" if lower == minor else "", f"sm_{major}{lower}"):
            if arch in known_archs("cuda"):
                return arch
    raise UnsupportedError(
        f"cuda: no code is generated for {name}, of compute capability {major}.{minor}; known are {', '.join(known_archs('cuda'))}"
    )


def _checked(driver: Any, answer: tuple[Any, Any]) -> Any:
    status, value = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise TargetError(f"cuda: the driver says {status.name}")
    return value


def _numbers(count: int) -> str:
    return "there are none" if not count else "there is only device 0" if count == 1 else f"they are 0 to {count - 1}"


# -- OpenCL


def opencl_devices() -> tuple[Any, ...]:
    """The `pyopencl.Device`s of this machine in the order of their numbers: those with memory that host and device share by address first,
    and within these, as their drivers list them. UserError, with what to do, where there is no package or no driver."""
    refuse_forked_child("opencl")
    try:
        import pyopencl
    except ImportError:
        raise TargetError(f"opencl: the package pyopencl is not installed: pip install 'tc[opencl]'; {_PLAIN_DEVICE}") from None
    problems: list[str] = []

    def ask(question: Callable[[], list[Any]]) -> list[Any]:
        try:
            return question()
        except pyopencl.Error as error:  # one driver that fails does not hide the devices of the others
            problems.append(str(error))
            return []

    devices = [device for platform in ask(pyopencl.get_platforms) for device in ask(platform.get_devices)]
    if not devices:
        why = f" ({'; '.join(problems)})" if problems else ""
        raise TargetError(
            f"opencl: no device is on this machine{why}; pip install 'tc[opencl]' brings one that is the CPU; {_PLAIN_DEVICE}"
        )
    return tuple(sorted(devices, key=lambda device: not _svm_features(device)))


def opencl_driver_name(number: int) -> str:
    """The platform and the driver of an OpenCL device."""
    device = opencl_devices()[number]
    return f"{device.platform.name.strip()} {device.driver_version}"


_PLAIN_DEVICE = (
    "without a device kernels can be written as text: tc compile MODEL --target opencl:generic --emit opencl -o FOLDER"
)


@cache
def opencl_facts(number: int = 0) -> DeviceFacts:
    """The facts of an OpenCL device of this machine: what it says of itself, and the rest as of a plain device. UserError when it is not
    there."""
    devices = opencl_devices()
    if number >= len(devices):
        raise TargetError(f"opencl: there is no device {number}; {_numbers(len(devices))}")
    return _asked_of_opencl(devices[number])


def _asked_of_opencl(device: Any) -> DeviceFacts:
    import pyopencl

    usual = device_called("opencl", "generic")
    threads = min(device.max_work_group_size, _MOST_THREADS)
    shared = device.local_mem_size
    is_cpu = bool(device.type & pyopencl.device_type.CPU)
    facts: dict[str, Any] = {
        "product": plain_name(device.name),
        "warp_size": _asked(device, "PREFERRED_WORK_GROUP_SIZE_MULTIPLE") or usual.warp_size,
        "max_threads_per_block": threads,
        "max_block": tuple(min(size, threads) for size in device.max_work_item_sizes[:3]),
        "max_threads_per_processor": threads if is_cpu else max(threads, usual.max_threads_per_processor),
        "max_blocks_per_processor": 1 if is_cpu else usual.max_blocks_per_processor,
        "static_shared_bytes_per_block": shared,
        "max_shared_bytes_per_block": shared,
        "shared_bytes_per_processor": shared if is_cpu else max(shared, usual.shared_bytes_per_processor),
        "processors": device.max_compute_units,
        # What a CPU says of its clock may be another number each time, and the text of a target is to stay.
        "clock_hz": usual.clock_hz if is_cpu else 1e6 * device.max_clock_frequency or usual.clock_hz,
        "f32_fma_per_cycle": float(device.native_vector_width_float) if is_cpu else usual.f32_fma_per_cycle,
        "memory_bytes": device.global_mem_size,
        "l2_bytes": device.global_mem_cache_size,
        "features": _opencl_features(device),
    }
    return dataclasses.replace(usual, **facts)


def _opencl_features(device: Any) -> tuple[str, ...]:
    extensions = frozenset(device.extensions.split())
    names = tuple(name for extension, name in _OPENCL_EXTENSIONS.items() if extension in extensions)
    return (*_versions(device), *names, *_svm_features(device))


_OPENCL_EXTENSIONS = {
    "cl_khr_fp16": "fp16",
    "cl_khr_fp64": "fp64",
    "cl_khr_subgroups": "subgroups",
    "cl_khr_subgroup_shuffle": "subgroup_shuffle",
}


def _versions(device: Any) -> tuple[str, str]:
    """`opencl_3.0`, the version of the device, and `opencl_c_1.2`, that of its language."""
    return f"opencl_{device.version.split()[1]}", f"opencl_c_{device.opencl_c_version.split()[2]}"


def _svm_features(device: Any) -> tuple[str, ...]:
    """Ways in which host and device address the same memory: "svm" (a buffer, mapped to be read by the host), "svm_fine" (a buffer, at any
    time), "svm_system" (all memory)."""
    import pyopencl

    kinds = pyopencl.device_svm_capabilities
    there = _asked(device, "SVM_CAPABILITIES")
    bits = (("svm", kinds.COARSE_GRAIN_BUFFER), ("svm_fine", kinds.FINE_GRAIN_BUFFER), ("svm_system", kinds.FINE_GRAIN_SYSTEM))
    return tuple(name for name, bit in bits if there & bit)


def _asked(device: Any, fact: str) -> int:
    """A number that older drivers do not tell; 0 then."""
    import pyopencl

    try:
        return int(device.get_info(getattr(pyopencl.device_info, fact)))
    except pyopencl.Error:
        return 0
