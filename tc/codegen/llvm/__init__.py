"""Loops to LLVM IR as text, for the CPU."""
