"""The commands by name, and what an error is to a shell: one line on stderr and a code.

0 fine, 1 no, 2 bad usage or argument, 3 the database cannot be reached, 4 its tables do not fit this library.
"""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sqlreplay.cli.bench import bench
from sqlreplay.cli.db import db
from sqlreplay.cli.demo import demo
from sqlreplay.cli.stats import stats
from sqlreplay.errors import (
    BadArgument,
    MissingExtra,
    OutcomeUnknown,
    SchemaError,
    SqlReplayError,
    StoreBusy,
    StoreUnavailable,
)

__all__ = ["app"]


class Commands(TyperGroup):
    """Turns the library's errors into a line and an exit code. Any other error is a bug and keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SqlReplayError as error:
            typer.echo(f"sqlreplay: {error}", err=True)
            raise typer.Exit(exit_code(error)) from error


def exit_code(error: SqlReplayError) -> int:
    if isinstance(error, (BadArgument, MissingExtra)):
        return 2
    if isinstance(error, SchemaError):
        return 4
    return 3 if isinstance(error, (StoreUnavailable, StoreBusy, OutcomeUnknown)) else 1


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, and with them passwords
    help="A persistent replay store for LLM reinforcement learning: look in, keep the tables up to date, try it out.",
)


def print_version(asked: bool) -> None:
    if asked:
        from sqlreplay import __version__

        typer.echo(f"sqlreplay {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take what every command shares."""


app.add_typer(db, name="db")
app.command()(stats)
app.command()(demo)
app.command()(bench)
