"""`tc db`: what a tuning database holds; databases joined, made smaller, handed to other programs."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding

from tc.cli.outcome import Outcome, format_bytes, format_seconds, make_table, write_file
from tc.errors import ScheduleError, TcError, UsageError, UserError
from tc.records.apply import check_trace
from tc.records.database import COLUMNS, Database, check_columns, export_row
from tc.records.index import Problem
from tc.records.record import Record, target_key
from tc.records.summary import TaskSummary, Timing, summarize
from tc.schedule.step import LANGUAGE_VERSION
from tc.target import Target, native_target

PROBLEMS_SHOWN = 5
HERE = "this machine"
INDENT, INDENT_MORE = (0, 0, 0, 4), (0, 0, 0, 6)

EPILOG = """\
examples:
  tc db list tuned.db                        every task: trials, best time, gain
  tc db list tuned.db --task 'conv*'         only those whose name fits
  tc db show tuned.db conv_3                 the best schedules of a task, step by step, and what failed
  tc db merge all.db mine.db yours.db        join databases; lines that are there already are skipped
  tc db prune tuned.db --keep 5              keep the five best schedules of each task
  tc db export tuned.db --format csv --columns task,trial,seconds -o trials.csv
  tc db ACTION --help                        more of them

A database is one file of JSON lines that is only added to. Lines that were edited or cut off are left out and named;
records for other machines and other versions of tc are kept and left alone.
"""

LIST_EPILOG = """\
examples:
  tc db list tuned.db
  tc db list tuned.db --task 'conv*' --json | jq '.tasks[] | select(.verified | not)'

A schedule counts as verified when its results were compared with the reference and it was measured again beside the
best one. Only verified schedules are ever applied. The gain is the default schedule's time over the best one's,
measured in turns.
"""

SHOW_EPILOG = """\
examples:
  tc db show tuned.db conv_3                 three best schedules; the steps of the first
  tc db show tuned.db conv_3 --top 1
  tc db show tuned.db 'conv*' --steps        every task that fits, the steps of every schedule shown
  tc db show tuned.db 5f3a91                 by the first digits of the workload's key
"""

MERGE_EPILOG = """\
examples:
  tc db merge all.db laptop.db server.db     makes all.db if it is missing
  tc db merge tuned.db colleague.db          adds to tuned.db

All lines are added, or, when one of the files cannot be read, none.
"""

PRUNE_EPILOG = """\
examples:
  tc db prune tuned.db --keep 5

Keeps, for each task, variant, target and number of threads, the best schedules, verified ones first; the last decisions
about the graph; and which schedules gave wrong results. The other trials, failures and damaged lines are gone for good:
a later search cannot learn from them. The file is replaced at once, so an interruption leaves the old one.
"""

EXPORT_EPILOG = f"""\
examples:
  tc db export tuned.db --format csv -o trials.csv
  tc db export tuned.db --format json --columns task,seconds,ratio,point --task 'conv*'

columns:
  {", ".join(COLUMNS[:10])},
  {", ".join(COLUMNS[10:])}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, act: Callable[[argparse.Namespace], Outcome], summary: str, epilog: str) -> argparse.ArgumentParser:
        added = actions.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for option, meaning in (("--json", "print the result as JSON"), ("--debug", "show where in tc an error comes from")):
            added.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=meaning)
        added.set_defaults(act=act)
        return added

    listing = add("list", list_tasks, "list the tasks: trials, failures, best time and gain", LIST_EPILOG)
    listing.add_argument("file", type=Path, help="a tuning database")
    listing.add_argument("--task", metavar="GLOB", help="only tasks whose name fits, such as 'conv*'")

    showing = add("show", show_best, "show the best schedules of a task, and what failed", SHOW_EPILOG)
    showing.add_argument("file", type=Path, help="a tuning database")
    showing.add_argument("task", help="a task's name, a pattern such as 'conv*', or the first digits of a workload's key")
    showing.add_argument("--top", type=int, default=3, metavar="N", help="schedules to show, 0 for all (default 3)")
    showing.add_argument("--steps", action="store_true", help="show the steps of every schedule, not of the first alone")

    merging = add("merge", merge, "add the records of databases to another one", MERGE_EPILOG)
    merging.add_argument("out", type=Path, metavar="OUT", help="the database to add to; made if it is missing")
    merging.add_argument("inputs", type=Path, metavar="IN", nargs="+", help="databases to take records from")

    pruning = add("prune", prune, "keep the best schedules of each task, and nothing else", PRUNE_EPILOG)
    pruning.add_argument("file", type=Path, help="a tuning database")
    pruning.add_argument("--keep", type=int, required=True, metavar="N", help="schedules to keep for each task")

    exporting = add("export", export, "write records as CSV or JSON", EXPORT_EPILOG)
    exporting.add_argument("file", type=Path, help="a tuning database")
    exporting.add_argument("--format", choices=("csv", "json"), default="csv", help="csv (default) or json")
    exporting.add_argument("--columns", metavar="NAME,NAME", help="what to write of each record (default: everything)")
    exporting.add_argument("--task", metavar="GLOB", help="only tasks whose name fits, such as 'conv*'")
    exporting.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to (default: standard output)")


def execute(args: argparse.Namespace) -> Outcome:
    """Do what `args.act` does."""
    outcome: Outcome = args.act(args)
    return outcome


# Actions.


def list_tasks(args: argparse.Namespace) -> Outcome:
    """A row for each task. UserError when none fits the pattern."""
    database = Database(args.file, create=False)
    summaries = summarize(database.records(any_language=True))
    chosen = [s for s in summaries if args.task is None or fnmatchcase(s.task, args.task)]
    if args.task is not None and not chosen:
        raise unknown_task(args.file, args.task, summaries)
    names = here_first(chosen)
    data: dict[str, Any] = {
        "file": str(args.file),
        "size_bytes": args.file.stat().st_size,
        "tasks": [describe(s, names) for s in chosen],
        "choices": sum(1 for _ in database.choices()),
        **describe_problems(database),
    }
    return Outcome(data, lambda console: show_list(console, data))


def show_best(args: argparse.Namespace) -> Outcome:
    """The best schedules of every task that fits. UserError when there is none."""
    if args.top < 0:
        raise UsageError(f"--top is {args.top}, must not be negative")
    database = Database(args.file, create=False)
    summaries = summarize(database.records(any_language=True))
    chosen = [s for s in summaries if is_meant(s, args.task)]
    if not chosen:
        raise unknown_task(args.file, args.task, summaries)
    names = here_first(chosen)
    data: dict[str, Any] = {
        "file": str(args.file),
        "tasks": [{**describe(s, names), **describe_schedules(s, database, args.top)} for s in chosen],
        **describe_problems(database),
    }
    return Outcome(data, lambda console: show_tasks(console, data, args.steps))


def merge(args: argparse.Namespace) -> Outcome:
    """Add the records of `args.inputs` to `args.out`."""
    for path in args.inputs:
        Database(path, create=False)  # what cannot be read is an error before anything is made
    merged = Database(args.out).merge(args.inputs)
    data: dict[str, Any] = {
        "file": str(args.out),
        "inputs": [str(path) for path in args.inputs],
        "added": merged.added,
        "duplicates": merged.duplicates,
        "problems": {name: [describe_problem(p) for p in found] for name, found in merged.problems.items()},
    }

    def report(console: Console) -> None:
        say(console, f"{args.out}: {count(merged.added, 'line')} added, {merged.duplicates:,} already there")
        for name, found in merged.problems.items():
            show_problems(console, len(found), data["problems"][name], f"{name}: ")

    return Outcome(data, report)


def prune(args: argparse.Namespace) -> Outcome:
    """Keep the best `args.keep` schedules of each task."""
    if args.keep < 1:
        raise UsageError(f"--keep is {args.keep}, must be at least 1")
    database = Database(args.file, create=False)
    before = args.file.stat().st_size
    pruned = database.prune(args.keep)
    after = args.file.stat().st_size
    data: dict[str, Any] = {
        "file": str(args.file),
        "kept": pruned.kept,
        "dropped": pruned.dropped,
        "damaged": pruned.damaged,
        "size_bytes": {"before": before, "after": after},
    }

    def report(console: Console) -> None:
        damaged = f", {count(pruned.damaged, 'damaged line')}" if pruned.damaged else ""
        say(console, f"{args.file}: {count(pruned.kept, 'line')} kept; {count(pruned.dropped, 'line')}{damaged} removed")
        say(console, f"{format_bytes(before)} before, {format_bytes(after)} now")

    return Outcome(data, report)


def export(args: argparse.Namespace) -> Outcome:
    """Write columns of the records to a file, or to standard output."""
    columns = COLUMNS if args.columns is None else [name.strip() for name in args.columns.split(",") if name.strip()]
    if not columns:
        raise UsageError("--columns: no column is named")
    check_columns(columns)
    database = Database(args.file, create=False)

    def records() -> Iterable[Record]:
        everything = database.records(any_language=True)
        return (r for r in everything if args.task is None or fnmatchcase(r.task, args.task))

    data: dict[str, Any] = {"file": str(args.file), "columns": list(columns)}
    if args.output is None:
        if args.json:
            data["rows"] = [export_row(record, columns) for record in records()]
        return Outcome(data, lambda console: print_export(database, args.format, columns, records()))

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            data["records"] = database.export(file, args.format, columns, records())

    write_file(args.output, write)
    data |= {"output": str(args.output), "format": args.format, **describe_problems(database)}

    def report(console: Console) -> None:
        say(console, f"{args.output}: {count(data['records'], 'record')}")
        show_problems(console, data["num_problems"], data["problems"])

    return Outcome(data, report)


def print_export(database: Database, format: str, columns: Sequence[str], records: Iterable[Record]) -> None:
    """The records on standard output, and nothing else there: damaged lines are told on standard error."""
    database.export(sys.stdout, format, columns, records)
    if database.num_problems:
        print(f"tc: {count(database.num_problems, 'damaged line')} left out (tc db list says which)", file=sys.stderr)


# Tasks.


def is_meant(summary: TaskSummary, text: str) -> bool:
    """Whether `text` names the task, or is a pattern of its name, or the first four or more digits of its workload's key."""
    by_key = len(text) >= 4 and summary.workload.startswith(text)
    return text == summary.task or by_key or fnmatchcase(summary.task, text)


def here_first(summaries: list[TaskSummary]) -> dict[str, str]:
    """Put the summaries for this machine before the others of their task; returns short names of the targets."""
    names = target_names(s.target for s in summaries)
    summaries.sort(key=lambda s: (s.task, s.workload, names[s.target] != HERE))
    return names


def unknown_task(path: Path, text: str, summaries: Sequence[TaskSummary]) -> UserError:
    """What to say when no task fits: the names that are near, or some that there are."""
    names = list(dict.fromkeys(s.task or s.workload for s in summaries))
    if not names:
        return UsageError(f"{path}: holds no records yet")
    near = [name for name in names if text in name][:5] or difflib.get_close_matches(text, names, n=3) or names[:5]
    more = ", ..." if len(names) > len(near) else ""
    return UsageError(f"{path}: no task is named '{text}'; there are {', '.join(near)}{more}")


def describe(summary: TaskSummary, names: dict[str, str]) -> dict[str, Any]:
    """A task as plain data. `gain` is the time of the default schedule over that of the best."""
    best = summary.best
    return {
        "task": summary.task,
        "workload": summary.workload,
        "target": summary.target,
        "target_name": names[summary.target],
        "threads": summary.threads,
        "language": summary.language,
        "trials": summary.trials,
        "failures": sum(summary.failures.values()),
        "seconds": best and best.seconds,
        "gain": best and 1 / best.ratio,
        "verified": best is not None and not best.unverified,
    }


def describe_schedules(summary: TaskSummary, database: Database, top: int) -> dict[str, Any]:
    """The best schedules of a task and its failures by cause, as plain data. Steps are None where the schedule is not readable."""
    ranking = summary.ranking[: top or None]
    wanted = {schedule for _, schedule in ranking}
    found: dict[str, Record] = {}
    details: dict[str, str] = {}
    for record in database.records(summary.workload, summary.target, summary.threads, any_language=True):
        if record.language != summary.language:
            continue
        schedule = record.schedule_key
        if record.error is not None:
            details.setdefault(record.error, first_line(record.detail))
        elif schedule in wanted and (schedule not in found or record.verified >= found[schedule].verified):
            found[schedule] = record
    return {
        "schedules": [describe_schedule(timing, found[schedule]) for timing, schedule in ranking if schedule in found],
        "failures_by_cause": [
            {"cause": cause, "count": number, "example": details.get(cause, "")} for cause, number in summary.failures.most_common()
        ],
    }


def describe_schedule(timing: Timing, record: Record) -> dict[str, Any]:
    steps, unreadable = None, None
    try:
        trace = record.parse_trace()
        check_trace(trace)
        steps = [str(step) for step in trace.steps]
    except ScheduleError as error:
        unreadable = str(error)
    return {
        "seconds": timing.seconds,
        "low": timing.low,
        "high": timing.high,
        "gain": 1 / timing.ratio,
        "verified": not timing.unverified,
        "variant": record.variant,
        "rule": record.rule,
        "trial": record.trial,
        "created": record.created,
        "version": record.version,
        "point": dict(record.point),
        "steps": steps,
        "unreadable": unreadable,
    }


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def target_names(targets: Iterable[str]) -> dict[str, str]:
    """Short names for the keys of targets: this machine, or the CPU's name, with what tells apart targets of one name."""
    keys = list(dict.fromkeys(targets))
    here = target_key(native_target())
    names = {key: HERE if key == here else short_name(key) for key in keys}
    for key in keys:
        alike = [other for other in keys if names[other] == names[key] and other != key]
        if alike:
            names = {**names, **{k: f"{names[k]} ({difference(k, [key, *alike])})" for k in (key, *alike)}}
    return names


def short_name(key: str) -> str:
    """The name of the CPU and its vectors; the beginning of a key that is not readable."""
    try:
        target = Target.parse(key)
    except TcError:
        return key[:32]
    return key if not key.startswith("cpu:") else f"{target.cpu}, {target.vector_bits} bit"


def difference(key: str, others: Sequence[str]) -> str:
    """The facts in `key` that not all of `others` have, so many as fit a line."""
    facts = [set(other.partition(":")[2].replace("+", ",+").split(",")) for other in others]
    own = key.partition(":")[2].replace("+", ",+").split(",")
    return " ".join(fact for fact in own if not all(fact in other for other in facts))[:48] or "fewer features"


# What people see.


def say(console: Console, text: str) -> None:
    """A line of text as it is: no markup, no colours, no folding in the middle of a word."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def count(number: int, what: str) -> str:
    """`1 line`, `1,234 lines`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def describe_problem(problem: Problem) -> dict[str, Any]:
    return {"line": problem.line, "why": problem.why}


def describe_problems(database: Database) -> dict[str, Any]:
    """The lines that are left out: all are counted, the first thousand described."""
    return {"num_problems": database.num_problems, "problems": [describe_problem(p) for p in database.problems]}


def show_problems(console: Console, number: int, problems: Sequence[dict[str, Any]], where: str = "") -> None:
    if not number:
        return
    console.print(f"[yellow]{where}{count(number, 'damaged line')} left out[/yellow]", highlight=False, soft_wrap=True)
    for problem in problems[:PROBLEMS_SHOWN]:
        say(console, f"  line {problem['line']}: {problem['why']}")
    if number > PROBLEMS_SHOWN:
        say(console, f"  and {number - PROBLEMS_SHOWN:,} more (--json lists them)")


def format_gain(gain: float | None) -> str:
    return "" if gain is None else f"{gain:.2f}x"


def name_of(task: dict[str, Any]) -> str:
    return str(task["task"] or task["workload"][:16])


def target_of(task: dict[str, Any]) -> str:
    """The target's name, and the version of the schedule language if it is not this tc's."""
    other = task["language"] != LANGUAGE_VERSION
    return f"{task['target_name']}, schedule language {task['language']}" if other else str(task["target_name"])


def show_list(console: Console, data: dict[str, Any]) -> None:
    tasks = data["tasks"]
    if tasks:
        columns = ("task", "trials ", "failed ", "best ", "gain ", "verified", "threads ", "target")
        rows = [
            (
                name_of(task),
                task["trials"],
                task["failures"] or "",
                "" if task["seconds"] is None else format_seconds(task["seconds"]),
                format_gain(task["gain"]),
                "yes" if task["verified"] else "no",
                task["threads"],
                target_of(task),
            )
            for task in tasks
        ]
        console.print(make_table("", columns, rows))
        console.print()
    trials = sum(task["trials"] for task in tasks)
    verified = sum(task["verified"] for task in tasks)
    decisions = f"; {count(data['choices'], 'decision')} about graphs" if data["choices"] else ""
    if tasks:
        say(console, f"{count(len(tasks), 'task')}, {verified:,} with a verified schedule; {count(trials, 'trial')}{decisions}")
    else:
        say(console, f"{data['file']}: no records yet{decisions}")
    show_problems(console, data["num_problems"], data["problems"])


def show_tasks(console: Console, data: dict[str, Any], all_steps: bool) -> None:
    for number, task in enumerate(data["tasks"]):
        if number:
            console.print()
        show_task(console, task, all_steps)
    if data["num_problems"]:
        console.print()
        show_problems(console, data["num_problems"], data["problems"])


def show_task(console: Console, task: dict[str, Any], all_steps: bool) -> None:
    schedules = task["schedules"]
    facts = [
        ("workload", task["workload"]),
        ("target", f"{target_of(task)}, {count(task['threads'], 'thread')}"),
        ("trials", f"{task['trials']:,}, {task['failures']:,} of them failed"),
    ]
    console.print(make_table(name_of(task), ("", ""), facts))
    if not schedules:
        say(console, "\nno schedule ran well")
    for place, schedule in enumerate(schedules):
        show_schedule(console, place, schedule, schedules[0], with_steps=all_steps or not place)
    if task["failures_by_cause"]:
        console.print()
        rows = [(failed["count"], failed["cause"], failed["example"]) for failed in task["failures_by_cause"]]
        console.print(make_table("failures", ("count ", "cause", "the first of them"), rows))


def show_schedule(
    console: Console, place: int, schedule: dict[str, Any], best: dict[str, Any], *, with_steps: bool
) -> None:
    """One schedule: of the best all answers, of the others those in which they differ."""
    low, high = format_seconds(schedule["low"]), format_seconds(schedule["high"])
    verified = "verified" if schedule["verified"] else "not verified"
    console.print()
    console.print(f"[bold]{place + 1}.  {format_seconds(schedule['seconds'])}[/bold]", end="", highlight=False)
    say(console, f"  ({low} to {high}), {format_gain(schedule['gain'])} the speed of the default, {verified}")
    facts = [
        ("from", f"trial {schedule['trial']}, {schedule['created']}, tc {schedule['version']}"),
        ("rule", ", variant ".join(filter(None, (schedule["rule"], schedule["variant"])))),
    ]
    console.print(Padding(make_table("", ("", ""), [fact for fact in facts if fact[1]]), INDENT, expand=False))
    point = schedule["point"]
    if place:
        point = {knob: value for knob, value in point.items() if best["point"].get(knob) != value}
    if point:
        say(console, "    answers" if not place else "    answers that differ")
        console.print(Padding(make_table("", ("", ""), point.items()), INDENT_MORE, expand=False))
    if schedule["unreadable"]:
        say(console, f"    its steps cannot be shown: {schedule['unreadable']}")
    elif with_steps:
        say(console, "    steps")
        for step in schedule["steps"]:
            say(console, f"      {step}")
