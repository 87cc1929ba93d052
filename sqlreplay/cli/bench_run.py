"""One benchmark from start to end: fill, measure, remove."""

import os
import platform
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sqlreplay.cli.bench_measures import MEASURES, Sides, codec_row, import_row
from sqlreplay.cli.bench_report import Measure, Report, Row
from sqlreplay.cli.bench_scratch import Scratch, open_scratch
from sqlreplay.cli.bench_tables import SIZES, table_rows
from sqlreplay.cli.output import console

__all__ = ["Plan", "plan_of", "run"]

SMALL, LARGE = 64, 1024
FEW_STORED = 1000
EXPIRING = 1000
MEMORY_BYTES = 200e6
NAMES = ("full", "few", "bare")


@dataclass(frozen=True)
class Plan:
    """How many groups are stored, by tokens of a response, and how often each thing is measured."""

    stored: dict[int, int]
    few: int
    repeats: int
    tables: tuple[int, int, int] = SIZES


def plan_of(quick: bool, stored: int | None) -> Plan:
    if stored is not None:
        return Plan({SMALL: stored, LARGE: stored}, stored, repeats=2, tables=(stored, stored, stored))
    if quick:
        return Plan({SMALL: 2_000, LARGE: 500}, FEW_STORED, repeats=5, tables=(500, 2_000, 5_000))
    return Plan({SMALL: 100_000, LARGE: 10_000}, FEW_STORED, repeats=9)


async def run(url: str | None, plan: Plan) -> Report:
    """Measure, and show on a terminal how far it is."""
    scratch = open_scratch(url)
    report = Report(
        {
            "sqlreplay": version("sqlreplay"),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "processors": os.cpu_count(),
        }
    )
    try:
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        ) as progress:
            bar = progress.add_task("", total=None)

            def show(what: str, done: int | None = None, total: int | None = None) -> None:
                progress.update(bar, description=what, completed=done, total=total)

            for tokens, stored in plan.stored.items():
                await run_size(scratch, plan, tokens, stored, report, show)
            report.rows += await table_rows(scratch, plan.tables, plan.repeats, show)
            show("codec and import")
            report.rows += [codec_row(tokens, plan.repeats) for tokens in plan.stored]
            report.rows.append(import_row())
    finally:
        await scratch.remove()
    return report


async def run_size(
    scratch: Scratch, plan: Plan, tokens: int, stored: int, report: Report, show: Callable[..., None]
) -> None:
    """Measure one size of group, and give its space back before the next."""
    few, expiring = min(plan.few, stored), min(EXPIRING, stored // 10)
    what = f"storing {stored:,} groups of {tokens:,} tokens"
    peak = await scratch.fill(
        "full",
        lambda done: show(what, done, stored),
        tokens=tokens,
        stored=stored,
        groups_per_step=expiring,
    )
    await scratch.fill("few", lambda done: None, tokens=tokens, stored=few, groups_per_step=max(1, few // 10))
    show("copying")
    await scratch.copy("full", "bare")
    if "database" not in report.machine:
        report.machine |= await scratch.facts("full")
        report.machine |= {"stored": {}, "group_bytes": {}}
    async with AsyncExitStack() as stack:
        full = await stack.enter_async_context(scratch.open_buffer("full"))
        small = await stack.enter_async_context(scratch.open_buffer("few"))
        bare = await scratch.open_bare("bare")
        stack.push_async_callback(bare.close)
        report.machine["stored"][f"{tokens} tokens"] = stored
        report.machine["group_bytes"][f"{tokens} tokens"] = round(await bare.mean_group_bytes())
        sides = Sides(tokens, stored, few, plan.repeats, expiring, full, small, bare, await bare.task_id())
        report.rows += await sides.rows(lambda number, name: show(f"{tokens:,} tokens: {name}", number, len(MEASURES)))
    if tokens == SMALL:
        report.rows.append(
            Row(
                f"peak memory of a process that put {stored:,} groups, {tokens:,} tokens",
                Measure((float(peak),)),
                at_most=MEMORY_BYTES,
                unit="bytes",
            )
        )
    await scratch.drop(*NAMES)
