"""How commands print: data to stdout, everything else to stderr; colour only where a person looks."""

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "human_bytes", "note", "print_json"]

PLAIN_WIDTH = 200


def console(*, stderr: bool = False) -> "Console":
    """Return a console that honours NO_COLOR, and does not fold lines into 80 columns for a pipe or a file."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else PLAIN_WIDTH)


def note(text: str) -> None:
    """Tell the person something that is not the command's data."""
    typer.echo(text, err=True)


def print_json(data: dict[str, Any]) -> None:
    typer.echo(json.dumps({"version": 1, **data}, indent=2))


def human_bytes(count: float) -> str:
    """
    >>> human_bytes(999), human_bytes(1536), human_bytes(5 * 2**30)
    ('999 B', '1.5 KiB', '5.0 GiB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1000 or unit == "TiB":
            break
    return f"{count:.1f} {unit}"
