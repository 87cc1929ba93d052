"""`sqlreplay stats`: what a run holds, by task and status."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from sqlreplay.cli.options import DEFAULT_URL, Json, PostgresSchema, Url, config_of
from sqlreplay.cli.output import console, human_bytes, note, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from sqlreplay.insights import Stats
    from sqlreplay.store.inspection import Inspection

__all__ = ["stats"]


def stats(
    url: Url = DEFAULT_URL,
    run: Annotated[str, typer.Option(help="The training run to look at.")] = "default",
    postgres_schema: PostgresSchema = None,
    as_json: Json = False,
) -> None:
    """Show what a run holds, by task and status. Looking changes and creates nothing."""
    from sqlreplay.store.inspection import inspect

    config = config_of(url, postgres_schema)
    found = asyncio.run(inspect(config))
    if found.problem is not None:
        raise found.problem
    if run not in found.runs:
        note(f"sqlreplay: {config} has no run {run!r}. {runs_there(found)}")
        raise typer.Exit(1)
    read = asyncio.run(read_stats(url, run, postgres_schema))
    if as_json:
        print_json(read.as_dict())
        return
    out = console()
    out.print(table_of(read))
    if any(task.is_table for task in read.tasks.values()):
        out.print(tables_of(read))


def runs_there(found: "Inspection") -> str:
    if not found.runs:
        return "Nothing was put there yet."
    more = ", ..." if len(found.runs) > 20 else ""
    return f"Choose one with --run. There are: {', '.join(found.runs[:20])}{more}"


async def read_stats(url: str, run: str, postgres_schema: str | None) -> "Stats":
    from sqlreplay import ReplayBuffer, RolloutState

    buffer: ReplayBuffer[RolloutState] = ReplayBuffer(url, run=run, schema="check", postgres_schema=postgres_schema)
    async with buffer:
        return await buffer.stats()


def table_of(stats: "Stats") -> "Table":
    """Lay a run out: a row for each task, a column for each status that occurs, and the totals."""
    from rich.markup import escape
    from rich.table import Table

    totals = stats.scalars()
    statuses = sorted({status for task in stats.tasks.values() for status in task.waiting})
    table = Table(title=escape(f"{stats.url}  run {stats.run}"), title_justify="left", show_footer=True)
    table.add_column("task", "total")
    table.add_column("train step", justify="right")
    for name in (*statuses, "leased", "groups", "samples", "tokens"):
        table.add_column(name, f"{totals.get(name, 0):,.0f}", justify="right")
    table.add_column("bytes", human_bytes(totals["bytes"]), justify="right")
    table.add_column("staleness mean / max", justify="right")
    for task_name, task in stats.tasks.items():
        counts = [task.waiting.get(status, 0) for status in statuses]
        counts += [task.leased, task.groups, task.samples, task.tokens]
        table.add_row(
            escape(task_name),
            "-" if task.train_step is None else str(task.train_step),
            *(f"{count:,}" for count in counts),
            human_bytes(task.bytes),
            f"{task.staleness_mean:.1f} / {task.staleness_max}",
        )
    return table


def tables_of(stats: "Stats") -> "Table":
    """Lay out the tasks that are tables: what each has seen since it was made, and how full it and the run are."""
    from rich.markup import escape
    from rich.table import Table

    tasks = {name: task for name, task in stats.tasks.items() if task.is_table}
    sizes, sizes_bytes = (sum(getattr(task, name) for task in tasks.values()) for name in ("size", "size_bytes"))
    table = Table(title="tables", title_justify="left", show_footer=True)
    table.add_column("table", "run")
    for name in ("inserted", "sampled", "removed", "evicted"):
        table.add_column(name, f"{sum(getattr(task, name) for task in tasks.values()):,}", justify="right")
    table.add_column("groups / most", of_most(sizes, stats.max_size, "{:,}".format), justify="right")
    table.add_column("bytes / most", of_most(sizes_bytes, stats.max_bytes, human_bytes), justify="right")
    for name, task in tasks.items():
        table.add_row(
            escape(name),
            *(f"{getattr(task, counter):,}" for counter in ("inserted", "sampled", "removed", "evicted")),
            of_most(task.size, task.max_size, "{:,}".format),
            of_most(task.size_bytes, task.max_bytes, human_bytes),
        )
    return table


def of_most(held: int | None, most: int | None, shown: "Callable[[int], str]") -> str:
    """
    >>> of_most(512, 1000, str), of_most(512, None, str)
    ('512 / 1000 (51 %)', '512 / -')
    """
    held = held or 0
    return f"{shown(held)} / -" if most is None else f"{shown(held)} / {shown(most)} ({100 * held // most} %)"
