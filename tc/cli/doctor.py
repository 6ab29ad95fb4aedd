"""`tc doctor`: what `tc` found on this machine, and whether anything is in its way."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import binding as llvm
from rich.console import Console

from tc.cli.outcome import Outcome, format_bytes, format_seconds, make_table
from tc.codegen.cuda.compile import compiler as cuda_compiler
from tc.codegen.cuda.compile import toolkit_program
from tc.errors import TcError, UsageError, UserError
from tc.measure.rates import measure_rates
from tc.runtime.cache_root import cache_path, cache_problem
from tc.runtime.pool import fork_join_seconds
from tc.target import Target, affinity_cpus, available_cpus, native_target
from tc.target.detect import cuda_count, cuda_driver_name, opencl_devices, opencl_driver_name
from tc.target.device import known_archs
from tc.target.machine import forget_measured, measured_path, table_of, write_measured
from tc.version import __version__

REQUIRED = ("numpy", "llvmlite", "onnx", "networkx", "ml_dtypes", "scipy", "rich", "platformdirs", "filelock")
# Either distribution provides `import xgboost`.
XGBOOST = ("xgboost-cpu", "xgboost")
OPTIONAL = {
    "onnxruntime": "tc run --check onnxruntime",
    "matplotlib": "plots",
    "cuda-bindings": "CUDA devices",
    "pyopencl": "OpenCL devices",
}
TOOLS = {
    "gcc": ("C to native code", "a package of the system: gcc"),
    "nvcc": ("CUDA-C to PTX and machine code, without a device", "NVIDIA's CUDA toolkit"),
    "ptxas": ("PTX to machine code, without a device", "NVIDIA's CUDA toolkit"),
    "nvdisasm": ("machine code of NVIDIA's devices as text", "pip install nvidia-cuda-nvdisasm"),
}
"""Programs that are not needed to compile or run a model: what each is for, and how to get it."""

NO_CUDA_COMPILER = "nothing here compiles it: pip install nvidia-cuda-nvrtc, or NVIDIA's CUDA toolkit"

INSTRUCTION_SETS = (
    *("sse4.2", "avx2", "fma", "f16c", "avx512f", "avx512vnni", "avxvnni", "avx512bf16", "avx512fp16", "amx-int8"),
    "neon",
)

BUSY_LOAD = 0.5
"""The mean number of programs that wanted a processor in the last minute from which a measurement is not to be relied on."""

EPILOG = """\
examples:
  tc doctor --measure       take the rates of this machine's cores; what is compiled from then on goes by them
  tc doctor --forget        go by the table that comes with tc again
exit code 1 when something is in the way
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Check this machine and this installation."
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--measure", action="store_true", help="measure this machine's cores, which takes a minute, and keep their rates")
    what.add_argument("--forget", action="store_true", help="remove the rates that were measured")


def execute(args: argparse.Namespace) -> Outcome:
    """Collect the facts. The exit code is 1 when there is a problem."""
    done = change_rates(args)
    data: dict[str, Any] = {
        "versions": versions(),
        "cpu": cpu_facts(),
        "rates": rate_facts() | done,
        "threads": thread_facts(),
        "cache": cache_facts(cache_path()),
        "devices": device_facts(),
        "tools": tool_facts(),
        "cuda_compiler": cuda_compiler(),
        "optional": {name: {"version": version_of(name), "for": purpose} for name, purpose in OPTIONAL.items()},
    }
    data["problems"] = problems(data)
    return Outcome(data, lambda console: show(console, data), 1 if data["problems"] else 0)


def versions() -> dict[str, str | None]:
    found = {name: version_of(name) for name in REQUIRED}
    found["xgboost"] = next(filter(None, map(version_of, XGBOOST)), None)
    llvm_version = ".".join(map(str, llvm.llvm_version_info))
    return {"tc": __version__, "python": platform.python_version(), "LLVM": llvm_version, **found}


def version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_facts() -> dict[str, Any]:
    target = native_target()
    return {
        "machine": platform.machine(),
        "model": model_name(),
        "llvm_name": target.cpu,
        "vector_bits": target.vector_bits,
        "vector_registers": target.num_vector_registers,
        "instruction_sets": [name for name in INSTRUCTION_SETS if target.has(name)],
        "l1_bytes": target.l1_bytes,
        "l2_bytes": target.l2_bytes,
        "l3_bytes": target.l3_bytes,
        "target": str(target),
    }


def device_facts() -> dict[str, Any]:
    """The devices of each kind with their facts, or why there are none."""
    return {
        "cuda": _devices("cuda", cuda_count, lambda number: cuda_driver_name()),
        "opencl": _devices("opencl", lambda: len(opencl_devices()), opencl_driver_name),
        "rocm": {"found": [], "problem": f"rocm: none is looked for; kernels are written as text for {', '.join(known_archs('rocm'))}"},
    }


def _devices(kind: str, count: Callable[[], int], driver_of: Callable[[int], str]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    try:
        for number in range(count()):
            found.append({"target": f"{kind}:{number}", "driver": driver_of(number), **_one_device(f"{kind}:{number}")})
    except TcError as error:
        return {"found": found, "problem": error.text}
    return {"found": found, "problem": None}


def _one_device(name: str) -> dict[str, Any]:
    """A device that may be of a kind for which no code is generated."""
    try:
        device = Target.parse(name).device
    except TcError as error:
        return {"facts": None, "problem": error.text}
    assert device is not None
    return {"facts": dataclasses.asdict(device), "problem": None}


def tool_facts() -> dict[str, Any]:
    """Programs that compile what is generated for devices and for C: where they are, and the line that tells their version."""
    return {
        name: {"path": toolkit_program(name), "version": _tool_version(name), "for": use, "get": get} for name, (use, get) in TOOLS.items()
    }


def _tool_version(name: str) -> str | None:
    path = toolkit_program(name)
    if path is None:
        return None
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line.strip() for line in said.splitlines() if any(letter.isdigit() for letter in line)]
    return next((line for line in lines if "release" in line), lines[0] if lines else None)


def change_rates(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, or forget what was measured, if that was asked for; what was done."""
    if not args.measure and not args.forget:
        return {}
    path = measured_path()
    if path is None:
        raise UsageError("doctor: TC_MACHINE_FILE switches measured rates off")
    if args.forget:
        return {"forgotten": str(path) if forget_measured(path) else None}
    target, load = native_target(), os.getloadavg()[0]
    found = measure_rates(target)
    try:
        write_measured(target, found.rates, path)
    except OSError as error:
        raise UsageError(f"doctor: {error.filename or path}: {error.strerror or error}") from error
    return {"measured_now": dict(found.shown), "load_before": load}


def rate_facts() -> dict[str, Any]:
    """By which rates of cores decisions are made, and where these are from."""
    try:
        table = table_of(native_target())
    except UserError as error:
        return {"kind": None, "problem": error.text}
    return {
        "kind": table.kind.name,
        "source": dict(table.kind.source),
        "file": None if table.measured is None else str(table.measured),
        "measured": list(table.measured_names),
        "fingerprint": table.rates.fingerprint(),
        "values": dataclasses.asdict(table.rates),
        "problem": None,
    }


def model_name() -> str:
    """The CPU's own name; may be wrong on a virtual machine, so nothing is decided by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def thread_facts() -> dict[str, Any]:
    cores = native_target().cores
    return {
        "logical_cpus": os.cpu_count() or 1,
        "in_affinity_mask": len(affinity_cpus()),
        "available": available_cpus(),
        "used_by_default": cores,
        "fork_join_seconds": {str(count): fork_join_seconds(count) for count in sorted({min(2, cores), cores})},
    }


def cache_facts(folder: Path | None) -> dict[str, Any]:
    """Where compiled kernels are kept, how much is there, and what is wrong with the folder, if anything is."""
    facts: dict[str, Any] = {"folder": None if folder is None else str(folder), "files": 0, "size_bytes": 0, "problem": None}
    if folder is None:
        return facts
    problem = cache_problem(folder)
    if problem is not None:
        return facts | {"problem": f"{problem}; every model will be compiled anew"}
    sizes = [entry.stat().st_size for entry in folder.rglob("*") if entry.is_file()]
    return facts | {"files": len(sizes), "size_bytes": sum(sizes)}


def problems(data: dict[str, Any]) -> list[str]:
    """What is in the way, each with what to do about it."""
    found = [f"package {name} is missing: pip install {name}" for name, v in data["versions"].items() if v is None]
    if data["cache"]["problem"]:
        found.append(f"cache folder: {data['cache']['problem']}")
    if data["rates"]["problem"]:
        found.append(data["rates"]["problem"])
    if data["cpu"]["machine"].lower() not in ("x86_64", "amd64"):
        found.append(f"{data['cpu']['machine']} is not a CPU that tc is tested on")
    if sys.maxsize < 2**32:
        found.append("this Python is a 32-bit build: install a 64-bit one")
    return found


def describe_cache(cache: dict[str, Any]) -> str:
    if cache["folder"] is None:
        return "switched off by TC_CACHE_DIR"
    return f"{cache['folder']}: {cache['files']} files, {format_bytes(cache['size_bytes'])}"


def describe_device(device: dict[str, Any]) -> str:
    """A device in a line: its number, name, driver, and what decides on schedules."""
    facts = device["facts"]
    if facts is None:
        return f"{device['target']}: {device['problem']}"
    return (
        f"{device['target']}: {facts['product']} ({facts['arch']} device; {device['driver']}), {facts['processors']} processors, "
        f"{format_bytes(facts['memory_bytes'])}, {format_bytes(facts['max_shared_bytes_per_block'])} shared and at most "
        f"{facts['max_threads_per_block']} threads a block, {', '.join(facts['features'])}"
    )


def describe_tool(name: str, tool: dict[str, Any]) -> str:
    if tool["path"] is None:
        return f"{name} not found ({tool['for']}); to get it: {tool['get']}"
    return f"{name}: {tool['version'] or tool['path']}"


def measured_now(data: dict[str, Any]) -> list[tuple[str, float]]:
    return list(data["rates"].get("measured_now", {}).items())


def describe_rates(rates: dict[str, Any]) -> str:
    if rates["problem"]:
        return "unknown"
    origin = f"{', '.join(rates['measured'])} measured ({rates['file']})" if rates["file"] else "none measured (tc doctor --measure)"
    return f"table of {rates['kind']}, {origin}; fingerprint {rates['fingerprint']}"


def show(console: Console, data: dict[str, Any]) -> None:
    cpu, threads, cache = data["cpu"], data["threads"], data["cache"]
    caches = ", ".join(f"{level} {format_bytes(cpu[f'{level.lower()}_bytes'])}" for level in ("L1", "L2", "L3"))
    rows = [
        ("versions", ", ".join(f"{name} {version or 'missing'}" for name, version in data["versions"].items())),
        ("CPU", f"{cpu['model']} ({cpu['machine']}; LLVM takes it for {cpu['llvm_name']})"),
        ("vectors", f"{cpu['vector_registers']} registers of {cpu['vector_bits']} bits"),
        ("instructions", ", ".join(cpu["instruction_sets"])),
        ("caches", caches),
        ("rates of a core", describe_rates(data["rates"])),
        (
            "threads",
            f"{threads['used_by_default']} by default; {threads['logical_cpus']} logical CPUs, "
            f"{threads['in_affinity_mask']} in the affinity mask, {threads['available']} within the quota",
        ),
        (
            "fork and join",
            ", ".join(f"{format_seconds(s)} on {count} threads" for count, s in threads["fork_join_seconds"].items()),
        ),
        ("cache folder", describe_cache(cache)),
    ]
    rows += [("measured now", f"{name.rpartition(', ')[0]}: {value:.4g} {name.rpartition(', ')[2]}") for name, value in measured_now(data)]
    if data["rates"].get("load_before", 0.0) > BUSY_LOAD:
        rows.append(("measured now", "other programs were at work: memory and clock are theirs too; measure again on an idle machine"))
    if "forgotten" in data["rates"]:
        rows.append(("forgotten", data["rates"]["forgotten"] or "nothing was measured"))
    for kind, devices in data["devices"].items():
        rows += [(f"{kind} device", describe_device(device)) for device in devices["found"]]
        if devices["problem"]:
            rows.append((f"{kind} devices", devices["problem"].removeprefix(f"{kind}: ")))
    rows += [("tools", describe_tool(name, tool)) for name, tool in data["tools"].items()]
    rows.append(("CUDA-C", f"compiled by {data['cuda_compiler']}" if data["cuda_compiler"] else NO_CUDA_COMPILER))
    for name, package in data["optional"].items():
        rows.append(("optional", f"{name} {package['version'] or 'not installed'} ({package['for']})"))
    console.print(make_table("", ("", ""), rows))
    for problem in data["problems"]:
        console.print(f"[red]problem[/red] {problem}", highlight=False)
    if not data["problems"]:
        console.print("[green]nothing is in the way[/green]")
