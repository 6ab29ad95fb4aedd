"""Conversions to and from 16-bit floats that LLVM leaves to a library of the C compiler's where the CPU has no instruction.

That library need not be in the process, and a call of a function that is not there jumps to address 0. These are ours, under its names:
round to nearest, ties to even, once; NaN stays NaN, quiet. All but the last bits of a double are rounded to odd on the way to a float,
so that the second rounding sees whether anything was cut off.
Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd".
"""

from __future__ import annotations

NAMES = ("__truncsfbf2", "__truncdfbf2", "__truncsfhf2", "__truncdfhf2", "__extendhfsf2")

_F32_TO_BF16 = """
define bfloat @__truncsfbf2(float %x) nounwind {
  %bits = bitcast float %x to i32
  %top = lshr i32 %bits, 16
  %odd = and i32 %top, 1
  %most = add i32 %bits, 32767
  %sum = add i32 %most, %odd
  %rounded = lshr i32 %sum, 16
  %quiet = or i32 %top, 64
  %isnan = fcmp uno float %x, %x
  %chosen = select i1 %isnan, i32 %quiet, i32 %rounded
  %short = trunc i32 %chosen to i16
  %result = bitcast i16 %short to bfloat
  ret bfloat %result
}
"""

_F32_TO_F16 = """
define half @__truncsfhf2(float %x) nounwind {
  %bits = bitcast float %x to i32
  %size = and i32 %bits, 2147483647
  %shifted = lshr i32 %bits, 16
  %sign = and i32 %shifted, 32768
  %isnan = icmp ugt i32 %size, 2139095040
  %payload = lshr i32 %size, 13
  %kept = and i32 %payload, 1023
  %nan = or i32 %kept, 32256
  %odd = and i32 %payload, 1
  %rebased = sub i32 %size, 939520001
  %sum = add i32 %rebased, %odd
  %normal = lshr i32 %sum, 13
  %islarge = icmp uge i32 %size, 1199570944
  %number = select i1 %islarge, i32 31744, i32 %normal
  %abs = bitcast i32 %size to float
  %lifted = fadd float %abs, 0.5
  %liftedbits = bitcast float %lifted to i32
  %small = sub i32 %liftedbits, 1056964608
  %issmall = icmp ult i32 %size, 947912704
  %finite = select i1 %issmall, i32 %small, i32 %number
  %magnitude = select i1 %isnan, i32 %nan, i32 %finite
  %all = or i32 %magnitude, %sign
  %short = trunc i32 %all to i16
  %result = bitcast i16 %short to half
  ret half %result
}
"""

_F16_TO_F32 = """
define float @__extendhfsf2(half %x) nounwind {
  %short = bitcast half %x to i16
  %bits = zext i16 %short to i32
  %sign16 = and i32 %bits, 32768
  %sign = shl i32 %sign16, 16
  %size = and i32 %bits, 32767
  %moved = shl i32 %size, 13
  %normal = add i32 %moved, 939524096
  %special = add i32 %moved, 1879048192
  %isspecial = icmp uge i32 %size, 31744
  %large = select i1 %isspecial, i32 %special, i32 %normal
  %raised = add i32 %moved, 947912704
  %raisedfloat = bitcast i32 %raised to float
  %smallfloat = fsub float %raisedfloat, 0x3F10000000000000
  %small = bitcast float %smallfloat to i32
  %issmall = icmp ult i32 %size, 1024
  %magnitude = select i1 %issmall, i32 %small, i32 %large
  %isnan = icmp ugt i32 %size, 31744
  %quiet = select i1 %isnan, i32 4194304, i32 0
  %signed = or i32 %magnitude, %sign
  %all = or i32 %signed, %quiet
  %result = bitcast i32 %all to float
  ret float %result
}
"""

_TO_ODD = """
define internal float @to_odd(double %x) nounwind {
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %exact = fcmp ueq double %back, %x
  %absback = call double @llvm.fabs.f64(double %back)
  %abs = call double @llvm.fabs.f64(double %x)
  %over = fcmp ogt double %absback, %abs
  %one = zext i1 %over to i32
  %bits = bitcast float %near to i32
  %below = sub i32 %bits, %one
  %odd = or i32 %below, 1
  %chosen = select i1 %exact, i32 %bits, i32 %odd
  %result = bitcast i32 %chosen to float
  ret float %result
}
declare double @llvm.fabs.f64(double)
"""

_F64_TO_SHORT = """
define KIND @__truncdfSHORTf2(double %x) nounwind {
  %odd = call float @to_odd(double %x)
  %result = call KIND @__truncsfSHORTf2(float %odd)
  ret KIND %result
}
"""

IR = "".join((
    _F32_TO_BF16,
    _F32_TO_F16,
    _F16_TO_F32,
    _TO_ODD,
    *(_F64_TO_SHORT.replace("KIND", kind).replace("SHORT", short) for kind, short in (("bfloat", "b"), ("half", "h"))),
))
"""All of them, as the text of one LLVM module."""
