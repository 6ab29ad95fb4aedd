from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tc import target
from tc.cli import doctor, main
from tc.errors import UserError
from tc.target.device import device_called


def test_doctor_lists_the_devices_that_are_there_with_their_facts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_driver() -> int:
        raise UserError("cuda: no driver here")

    monkeypatch.setattr(doctor, "cuda_count", no_driver)
    monkeypatch.setattr(doctor, "opencl_devices", lambda: ("a device", "another"))
    monkeypatch.setattr(doctor, "opencl_driver_name", lambda number: f"driver {number}")
    monkeypatch.setattr(target, "_DETECTION", {"opencl": lambda number: replace(device_called("opencl", "generic"), processors=number + 3)})

    devices = doctor.device_facts()

    assert devices["cuda"] == {"found": [], "problem": "cuda: no driver here"}
    assert [(each["target"], each["driver"], each["facts"]["processors"]) for each in devices["opencl"]["found"]] == [
        ("opencl:0", "driver 0", 3),
        ("opencl:1", "driver 1", 4),
    ]
    assert main(["doctor"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "no driver here" in text
    assert "opencl:1: generic (generic device; driver 1), 4 processors, 1.0 GiB, 32.0 KiB shared and at most 256 threads a block" in text


def test_doctor_says_how_to_get_programs_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\necho no version\necho gcc 99.1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    tools = doctor.tool_facts()

    assert (tools["gcc"]["path"], tools["gcc"]["version"]) == (str(compiler), "gcc 99.1")
    assert tools["ptxas"]["path"] is None
    assert doctor.describe_tool("ptxas", tools["ptxas"]).endswith("to get it: NVIDIA's CUDA toolkit")


def test_doctor_tells_of_a_device_for_which_no_code_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> None:
        raise UserError("cuda: of compute capability 7.0")

    monkeypatch.setattr(doctor, "cuda_count", lambda: 1)
    monkeypatch.setattr(doctor, "cuda_driver_name", lambda: "CUDA 13.0")
    monkeypatch.setattr(target, "_DETECTION", {"cuda": refuse})

    found = doctor.device_facts()["cuda"]["found"]

    assert [doctor.describe_device(device) for device in found] == ["cuda:0: cuda: of compute capability 7.0"]
