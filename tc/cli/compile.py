"""`tc compile`: a model file to a compiled module, or to the text of one of the stages in between."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

import tc
from tc.cli.options import add_compile_arguments, compile_options, need_model
from tc.cli.outcome import Outcome, check_output, format_bytes, format_seconds, write_file
from tc.errors import UserError
from tc.target import Target

STAGES = ("graph", "loops", "scheduled", "llvm", "asm")

EPILOG = """\
examples:
  tc compile model.onnx -o model.tcm                   a module that `tc run` and tc.load take
  tc compile model.onnx --emit graph                   the graph after all graph passes
  tc compile model.onnx --emit scheduled --kernel k    one kernel's loops as they are compiled
  tc compile model.onnx --emit asm -o model.s          machine code as text
  tc compile model.onnx --target x86-64-v3 -o any.tcm  for every machine of that level

A compiled module is native code: run only those that you trust as you trust a program.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="an ONNX file")
    parser.add_argument("-o", "--output", type=Path, help="file to write; without it, text goes to the terminal")
    parser.add_argument("--emit", choices=STAGES, help="write this stage as text instead of a compiled module")
    parser.add_argument("--kernel", metavar="NAME", help="only this kernel of the stage")
    add_compile_arguments(parser)


def execute(args: argparse.Namespace) -> Outcome:
    """Compile, or with `--emit` stop at a stage and print it."""
    need_model(args.model, "tc compile", "not a model")
    if args.output:
        check_output(args.output, "--output")
    if args.emit:
        return emit_stage(args)
    if args.kernel:
        raise UserError("--kernel: needs --emit, to say which stage of the kernel to write")
    start = time.perf_counter()
    module = tc.compile(args.model, **compile_options(args))
    seconds = time.perf_counter() - start
    data = {"model": str(args.model), "target": args.target, "compile_seconds": seconds}
    if args.output:
        write_file(args.output, module.save)
        data |= {"output": str(args.output), "size_bytes": args.output.stat().st_size}

    def show(console: Console) -> None:
        console.print(f"compiled {args.model} in {format_seconds(seconds)}", highlight=False, markup=False)
        if args.output:
            size = format_bytes(data["size_bytes"])
            console.print(f"wrote {args.output} ({size})", highlight=False, markup=False)
        else:
            console.print(str(module.report()), highlight=False, markup=False)

    return Outcome(data, show)


def emit_stage(args: argparse.Namespace) -> Outcome:
    options = compile_options(args)
    if args.tune or args.verify != "auto":
        raise UserError(f"--{'tune' if args.tune else 'verify'}: not for --emit, which shows what is compiled by default")
    target = Target.of(options["target"])
    if options["threads"] is not None:
        target = replace(target, cores=options["threads"])
    chosen = {name: options[name] for name in ("dims", "numerics", "on_unsupported")}
    lowered = tc.lower(args.model, stage=args.emit, target=target, **chosen)
    text = lowered.as_text(kernel=args.kernel) if args.kernel else lowered.as_text()
    data = {"model": str(args.model), "stage": args.emit, "kernel": args.kernel}
    if args.output:
        write_file(args.output, lambda path: path.write_text(text, encoding="utf-8"))
        data |= {"output": str(args.output)}
        return Outcome(data, lambda console: console.print(f"wrote {args.output}", highlight=False, markup=False))
    return Outcome(data | {"text": text}, lambda console: print(text, file=console.file))
