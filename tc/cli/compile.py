"""`tc compile`: a model file to a compiled module, or to the text of one of the stages in between."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import tc
from tc.cli.options import add_compile_arguments, compile_options, need_model
from tc.cli.outcome import Outcome, check_output, format_bytes, format_seconds, make_table, write_file
from tc.codegen.kernels import SCHEDULE_STEP
from tc.errors import UsageError
from tc.passes.manager import PASSES, Hooks, Stopwatch
from tc.passes.pipeline import USUAL, PassOptions
from tc.stages import known_stages
from tc.target import Target

EPILOG = """\
examples:
  tc compile model.onnx -o model.tcm                   a module that `tc run` and tc.load take
  tc compile model.onnx --emit graph                   the graph after all graph passes
  tc compile model.onnx --emit scheduled --kernel k    one kernel's loops as they are compiled
  tc compile model.onnx --emit asm -o model.s          machine code as text
  tc compile model.onnx --emit asm -o folder           the same, a file for each kernel, what the host does, how to build it
  tc compile model.onnx --target cuda:sm_90a --emit cuda -o folder   kernels for a device that is not here, as CUDA-C; ptx as well
  tc compile model.onnx --target x86-64-v3 -o any.tcm  for every machine of that level
  tc compile model.onnx --precision bf16               products of 16-bit operands, values between kernels in 16 bits
  tc compile model.onnx --verify-each                  check the IR after every pass; a pass that breaks it is named
  tc compile model.onnx --print-after fuse_ops         the program after a pass, or after "schedule"
  tc compile model.onnx --timings                      where the time of compiling goes
  tc compile model.onnx --passes 'canonicalize, fold_constants, fuse_ops(max_ops=1)'   other passes over the graph

A compiled module is native code: run only those that you trust as you trust a program.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="an ONNX file")
    where = "file to write, with --emit also a folder: a name without a dot; without it, text goes to the terminal"
    parser.add_argument("-o", "--output", type=Path, help=where)
    parser.add_argument("--emit", choices=known_stages(), help="write this stage as text instead of a compiled module")
    parser.add_argument("--kernel", metavar="NAME", help="only this kernel of the stage")
    add_compile_arguments(parser)
    group = parser.add_argument_group("passes")
    group.add_argument("--verify-each", action="store_true", help="check the IR after every pass, and name the one that broke it")
    group.add_argument("--print-after", action="append", default=[], metavar="PASS", help="print the program after this pass; repeatable")
    group.add_argument("--passes", metavar="TEXT", help="passes over the graph, such as 'canonicalize, fuse_ops', in place of the usual")
    group.add_argument("--timings", action="store_true", help="print the seconds of every stage and of every pass")


def pass_options(args: argparse.Namespace, watch: Stopwatch) -> PassOptions:
    """What is asked for about passes; their seconds go to `watch`. UserError for passes that do not exist."""
    known = {*PASSES, SCHEDULE_STEP}
    for name in args.print_after:
        if name not in known:
            raise UsageError(f"--print-after: no pass {name!r}; there are: {', '.join(sorted(known))}")
    hooks = Hooks(args.verify_each, frozenset(args.print_after), print, watch if args.timings else None)
    options = PassOptions(hooks, args.passes)
    options.pipeline(args.numerics)  # its text is read
    return options if args.passes is not None or args.verify_each or args.print_after or args.timings else USUAL


def execute(args: argparse.Namespace) -> Outcome:
    """Compile, or with `--emit` stop at a stage and print it."""
    need_model(args.model, "tc compile", "not a model")
    if is_for_folder(args) and args.output.is_file():
        raise UsageError(f"--output {args.output}: is a file; a file for each kernel needs a folder, all of them in one a name with a dot")
    if args.output:
        file = args.output / "plan.txt" if is_for_folder(args) and args.output.is_dir() else args.output
        check_output(file, "--output", args.model)
    if args.emit:
        return emit_stage(args)
    if args.kernel:
        raise UsageError("--kernel: needs --emit, to say which stage of the kernel to write")
    watch = Stopwatch()
    options = {**compile_options(args), "passes": pass_options(args, watch)}
    start = time.perf_counter()
    module = tc.compile(args.model, **options)
    seconds = time.perf_counter() - start
    data: dict[str, Any] = {"model": str(args.model), "target": args.target, "compile_seconds": seconds}
    if args.timings:
        data["timings"] = {"stages": dict(module.report().seconds), "passes": watch.seconds, "calls": watch.calls}
    if args.output:
        module.save(args.output)
        data |= {"output": str(args.output), "size_bytes": args.output.stat().st_size}

    def show(console: Console) -> None:
        console.print(f"compiled {args.model} in {format_seconds(seconds)}", highlight=False, markup=False)
        if args.output:
            size = format_bytes(data["size_bytes"])
            console.print(f"wrote {args.output} ({size})", highlight=False, markup=False)
        elif not args.timings:
            console.print(str(module.report()), highlight=False, markup=False)
        if args.timings:
            show_timings(console, data["timings"])

    return Outcome(data, show)


def show_timings(console: Console, timings: dict[str, dict[str, Any]]) -> None:
    """Stages in their order, passes slowest first."""
    stages, passes, calls = timings["stages"], timings["passes"], timings["calls"]
    total = sum(stages.values())
    rows = [(name, format_seconds(seconds), f"{100 * seconds / total:.1f} %") for name, seconds in stages.items()]
    console.print(make_table("stages", ("stage", "seconds ", "share "), rows))
    order = sorted(passes, key=lambda name: -passes[name])
    console.print(
        make_table("passes", ("pass", "calls ", "seconds "), [(n, str(calls[n]), format_seconds(passes[n])) for n in order])
    )


def is_for_folder(args: argparse.Namespace) -> bool:
    """Whether there is to be a file for each kernel: what is written has kernels, and the output is a folder, or its name has no dot."""
    has_kernels = args.emit is not None and args.emit not in ("graph", "plan") and not args.kernel
    return has_kernels and args.output is not None and (args.output.is_dir() or not args.output.suffix)


def write_folder(folder: Path, texts: Mapping[str, str | bytes], data: dict[str, Any]) -> Outcome:
    """Write files into a folder, which is made if it is not there."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        write_file(folder / name, partial(_write_text, text))
    data |= {"output": str(folder), "files": list(texts)}
    return Outcome(data, lambda console: console.print(f"wrote {len(texts)} files into {folder}", highlight=False, markup=False))


def _write_text(text: str | bytes, path: Path) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def emit_stage(args: argparse.Namespace) -> Outcome:
    options = compile_options(args)
    if args.passes is not None or args.verify_each or args.print_after or args.timings:
        raise UsageError("--passes, --verify-each, --print-after and --timings are not for --emit")
    if args.tune or args.verify != "auto":
        raise UsageError(f"--{'tune' if args.tune else 'verify'}: not for --emit, which shows what is compiled by default")
    target = Target.of(options["target"])
    if options["threads"] is not None:
        target = replace(target, cores=options["threads"])
    chosen = {name: options[name] for name in ("dims", "numerics", "on_unsupported", "precision", "calibration") if name in options}
    lowered = tc.lower(args.model, stage=args.emit, target=target, **chosen)
    data = {"model": str(args.model), "stage": args.emit, "kernel": args.kernel}
    if is_for_folder(args):
        return write_folder(args.output, lowered.files(), data)
    text = lowered.as_text(kernel=args.kernel) if args.kernel else lowered.as_text()
    if args.output:
        write_file(args.output, partial(_write_text, text))
        data |= {"output": str(args.output)}
        return Outcome(data, lambda console: console.print(f"wrote {args.output}", highlight=False, markup=False))
    return Outcome(data | {"text": text}, lambda console: print(text, file=console.file))
