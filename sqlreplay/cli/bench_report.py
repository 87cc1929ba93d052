"""What a benchmark found: numbers, ratios and verdicts, as a table and as JSON."""

import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.table import Table

from sqlreplay.cli.output import console

__all__ = ["Measure", "Report", "Row"]


@dataclass(frozen=True)
class Measure:
    """Repeated measurements of one thing, in seconds or bytes."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __add__(self, other: "Measure") -> "Measure":
        return Measure(tuple(a + b for a, b in zip(self.values, other.values, strict=True)))

    def as_json(self) -> dict[str, float]:
        return {"median": self.median, "low": min(self.values), "high": max(self.values)}


@dataclass(frozen=True)
class Row:
    """One line of the table. A ratio is ours to theirs in time, or ours to theirs in throughput."""

    what: str
    ours: Measure
    beside: Measure | None = None
    beside_what: str = "bare driver"
    at_most: float | None = None
    at_least: float | None = None
    unit: Literal["seconds", "bytes"] = "seconds"

    @property
    def ratio(self) -> float | None:
        if self.beside is None:
            return None
        ratio = self.ours.median / self.beside.median
        return ratio if self.at_least is None else 1 / ratio

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f"at least {self.at_least:g} of its throughput"
        if self.at_most is None:
            return ""
        return f"at most {self.at_most:g}" if self.beside else f"under {shown(self.at_most, self.unit)}"

    @property
    def met(self) -> bool | None:
        found = self.ours.median if self.ratio is None else self.ratio
        if self.at_least is not None:
            return found >= self.at_least
        return None if self.at_most is None else found <= self.at_most

    @property
    def verdict(self) -> str:
        return {None: "", True: "ok", False: "MISSED"}[self.met]

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "unit": self.unit,
            "ours": self.ours.as_json(),
            "beside": None if self.beside is None else self.beside.as_json(),
            "beside_what": None if self.beside is None else self.beside_what,
            "ratio": self.ratio,
            "target": self.target or None,
            "verdict": self.verdict or None,
        }


@dataclass
class Report:
    """Where it was measured, and what was found."""

    machine: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"machine": self.machine, "rows": [row.as_json() for row in self.rows]}

    def print(self) -> None:
        terminal = console()
        for name, value in self.machine.items():
            if isinstance(value, dict):
                value = ", ".join(f"{number:,} ({size})" for size, number in value.items())
            terminal.print(f"{name.replace('_', ' ')}: {value}", markup=False)
        table = Table(box=None, pad_edge=False)
        for heading in ("what", "ours (range)", "beside", "ratio", "target", "verdict"):
            table.add_column(heading, justify="right" if heading == "ratio" else "left")
        for row in self.rows:
            table.add_row(
                row.what,
                ranged(row.ours, row.unit),
                "" if row.beside is None else f"{ranged(row.beside, row.unit)} {row.beside_what}",
                "" if row.ratio is None else f"{row.ratio:.2f}",
                row.target,
                f"[red]{row.verdict}[/red]" if row.met is False else row.verdict,
            )
        terminal.print(table)
        terminal.print("Timings are noisy: run a missed target again on a quiet machine before you believe it.")


def ranged(measure: Measure, unit: str) -> str:
    if len(measure.values) == 1:
        return shown(measure.median, unit)
    low, high = (shown(value, unit).partition(" ")[0] for value in (min(measure.values), max(measure.values)))
    return f"{shown(measure.median, unit)} ({low}-{high})"


def shown(value: float, unit: str) -> str:
    """Write seconds as milliseconds and bytes as megabytes."""
    return f"{value * 1e3:,.2f} ms" if unit == "seconds" else f"{value / 1e6:,.0f} MB"
