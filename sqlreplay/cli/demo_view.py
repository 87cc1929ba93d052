"""What the viewer of the demo sees: a live table on a terminal, a line each second elsewhere, and the end in words."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from sqlreplay.cli.demo_account import PLACES, Account
from sqlreplay.cli.output import console, note

if TYPE_CHECKING:
    from sqlreplay.cli.demo import Outcome

__all__ = ["View", "print_outcome"]

LIVE_PLACES = ("produced", "consumed", "waiting", "expired")
Counts = Mapping[str, Mapping[str, int]]


class View:
    """Shows counts by task on stderr while the demo runs."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._events: list[str] = []
        self._next_line_at = 0.0

    def __enter__(self) -> "View":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, event: str) -> None:
        """Say that something happened."""
        if self._live is None:
            note(event)
        self._events.append(event)

    def show(self, counts: Counts, step: int, seconds: float) -> None:
        if self._live is not None:
            self._live.update(self._table(counts, step, seconds), refresh=True)
        elif seconds and time.monotonic() >= self._next_line_at:
            self._next_line_at = time.monotonic() + 1
            totals = {place: sum(of_task[place] for of_task in counts.values()) for place in LIVE_PLACES}
            numbers = "  ".join(f"{place} {number}" for place, number in totals.items())
            note(f"{seconds:5.1f} s  step {step:3}  {numbers}")

    def _table(self, counts: Counts, step: int, seconds: float) -> Table:
        table = table_of(counts, LIVE_PLACES)
        table.title = f"{seconds:4.1f} s   train step {step}"
        table.caption = escape("\n".join(self._events))
        return table


def table_of(counts: Counts, places: tuple[str, ...]) -> Table:
    """Lay out counts: a row for each task, a column for each place, and the totals."""
    table = Table(show_footer=True, title_justify="left", caption_justify="left")
    table.add_column("task", "total", min_width=8)
    for place in places:
        total = sum(of_task[place] for of_task in counts.values())
        table.add_column(place.replace("_", " "), f"{total:,}", justify="right", min_width=9)
    for task, of_task in counts.items():
        table.add_row(task, *(f"{of_task[place]:,}" for place in places))
    return table


def print_outcome(account: Account, outcome: "Outcome") -> None:
    """Print what was counted, and say in plain words what happened."""
    out = console()
    out.print(table_of(account.counts_by_task(), PLACES))
    for line in (*sentences(account, outcome), *account.problems):
        out.print(escape(line), soft_wrap=True)


def sentences(account: Account, outcome: "Outcome") -> list[str]:
    number = account.counts()
    lines = [
        f"{outcome.producers} producers put {number['produced']} groups in {outcome.seconds:.1f} s, and a trainer "
        f"trained on {number['consumed']} of them, the most stale first.",
        f"The trainer was killed with SIGKILL at {outcome.killed_at_s:.1f} s and a new one went on; "
        f"{number['in_hands']} groups were in its hands and went with it.",
        f"{number['expired']} groups became too old to train on and wait as expired; "
        f"{number['waiting']} wait to be taken.",
    ]
    if account.problems:
        lines.append(f"That does NOT add up; {len(account.problems)} problems:")
    else:
        lines.append("Every group that was put is in exactly one of these places, and none was trained on twice.")
    if outcome.kept:
        lines.append(f"The groups are still there: {outcome.kept}")
    return lines
