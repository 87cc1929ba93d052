"""`sqlreplay bench`: how fast the library is on this machine and database, beside the bare driver."""

import asyncio
from typing import Annotated

import typer

from sqlreplay.cli.options import Json

__all__ = ["bench"]


def bench(
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="The database to measure on. SQLite works in a temporary folder beside the file that it names, "
            "Postgres in schemas of its own; without a URL it is SQLite in the system's temporary folder.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Store 2,000 and 500 groups only.")] = False,
    as_json: Json = False,
    stored: Annotated[int | None, typer.Option("--stored", hidden=True, min=300)] = None,
) -> None:
    """Measure the verbs beside the bare driver on the same bytes, and remove everything afterwards."""
    from sqlreplay.cli.bench_run import plan_of, run
    from sqlreplay.cli.output import print_json

    report = asyncio.run(run(url, plan_of(quick, stored)))
    if as_json:
        print_json(report.as_json())
    else:
        report.print()
