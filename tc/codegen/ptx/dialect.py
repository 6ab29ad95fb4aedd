"""What differs between LLVM's targets for devices in the program of one thread. A target that is new is a table here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tc.codegen.launches import FEW_THREADS


@dataclass(frozen=True)
class ThreadDialect:
    """How LLVM IR of a thread is written for a target.

    `convention`: of functions that are launched; `sizes`: what else these are given, with the threads of a block along each axis and in
    all; `one_block`: where these are few, that one block at a time will do. `numbers`: level of an axis -> how the intrinsics begin that
    tell a block's or a thread's number along it. `barrier_function`: the intrinsic that threads of a block wait in, and the types of its
    arguments; `barrier`: the instructions that also let them see what was written before. `own_space`: the address space of a thread's
    own memory; 0 where that is found out. `asked_shared`: the name of the shared memory that a launch asks for; "" where functions
    declare any amount. `has_warps`: assembly may be PTX of the instructions of warps.
    """

    name: str
    triple: str
    convention: str
    sizes: str
    numbers: Mapping[str, str]
    barrier_function: tuple[str, ...]
    barrier: tuple[str, ...]
    own_space: int = 0
    one_block: str = ""
    asked_shared: str = ""
    has_warps: bool = False

    def block_size(self, x: int, y: int, z: int) -> str:
        """What a function is given whose blocks have so many threads."""
        total = x * y * z
        return self.sizes.format(x=x, y=y, z=z, total=total) + (self.one_block if total <= FEW_THREADS else "")


NVPTX = ThreadDialect(
    name="NVPTX",
    triple="nvptx64-nvidia-cuda",
    convention="ptx_kernel",
    sizes='"nvvm.reqntid"="{x},{y},{z}"',
    one_block=' "nvvm.minctasm"="1"',
    numbers={"block": "llvm.nvvm.read.ptx.sreg.ctaid", "thread": "llvm.nvvm.read.ptx.sreg.tid"},
    barrier_function=("llvm.nvvm.barrier.cta.sync.aligned.all", "i32"),
    barrier=("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)",),
    asked_shared="tc_shared",
    has_warps=True,
)

AMDGPU = ThreadDialect(
    name="AMDGPU",
    triple="amdgcn-amd-amdhsa",
    convention="amdgpu_kernel",
    sizes='"amdgpu-flat-work-group-size"="{total},{total}" !reqd_work_group_size !{{i32 {x}, i32 {y}, i32 {z}}}',
    numbers={"block": "llvm.amdgcn.workgroup.id", "thread": "llvm.amdgcn.workitem.id"},
    barrier_function=("llvm.amdgcn.s.barrier",),
    barrier=(
        'fence syncscope("workgroup") release',
        "call void @llvm.amdgcn.s.barrier()",
        'fence syncscope("workgroup") acquire',
    ),
    own_space=5,
)
