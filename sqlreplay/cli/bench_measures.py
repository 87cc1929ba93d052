"""The measurements. Sides take turns, and each is measured several times."""

import asyncio
import gc
import pickle
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from sqlreplay import ReplayBuffer, RolloutState, Status
from sqlreplay.cli.bench_bare import Bare, Taken
from sqlreplay.cli.bench_fill import PUT_RULES, TASK, TRAIN_STEP, make_group
from sqlreplay.cli.bench_report import Measure, Row
from sqlreplay.errors import StoreError
from sqlreplay.payload import Codec
from sqlreplay.records import RESPONSE_FIELDS

__all__ = ["MEASURES", "Sides", "codec_row", "import_row"]

MEASURES = ("take_and_put", "count", "is_ready", "refresh_nothing", "refresh_expiring")
BATCH = 128
CALLS = 20
SETTLE_S = 0.2
"""Bytes that were taken are freed a moment later; nothing else is measured meanwhile."""

Work = Callable[[], Awaitable[float]]


@dataclass
class Sides:
    """One size of group: the library on the full and on the small database, and the bare driver on a full one."""

    tokens: int
    stored: int
    few: int
    repeats: int
    expiring: int
    full_buffer: ReplayBuffer[RolloutState]
    few_buffer: ReplayBuffer[RolloutState]
    bare: Bare
    task_id: int

    def __post_init__(self) -> None:
        self.codec: Codec[RolloutState] = Codec(RolloutState, response_fields=RESPONSE_FIELDS)

    async def rows(self, show: Callable[[int, str], None]) -> list[Row]:
        """Measure everything; the last measurement uses the groups up."""
        found: list[Row] = []
        for number, name in enumerate(MEASURES):
            show(number, name)
            found += await getattr(self, name)()
        return found

    def named(self, what: str) -> str:
        return f"{what}, {self.tokens:,} tokens"

    def flat_row(self, what: str, full: Measure, few: Measure) -> Row:
        return Row(self.named(f"{what}, {self.stored:,} stored"), full, few, f"{self.few:,} stored", at_most=1.5)

    async def take_and_put(self) -> list[Row]:
        """Take a batch and put it at the end again, so that the number stored stays the same."""
        times: dict[str, list[float]] = {
            name: [] for name in ("take", "put", "few_take", "few_put", "bare_take", "bare_put")
        }
        for repeat in range(self.repeats + 1):
            found = {
                **dict(zip(("take", "put"), await self.cycle(self.full_buffer), strict=True)),
                **dict(zip(("bare_take", "bare_put"), await self.bare_cycle(), strict=True)),
                **dict(zip(("few_take", "few_put"), await self.cycle(self.few_buffer), strict=True)),
            }
            if repeat:  # the first round compiles statements and fills caches
                for name, seconds in found.items():
                    times[name].append(seconds)
        measured = {name: Measure(tuple(values)) for name, values in times.items()}
        return [
            Row(self.named(f"take_batch of {BATCH}"), measured["take"], measured["bare_take"], at_most=2.0),
            self.flat_row(f"take_batch of {BATCH}", measured["take"], measured["few_take"]),
            Row(self.named(f"put, {BATCH} at once"), measured["put"], measured["bare_put"], at_least=0.6),
        ]

    async def cycle(self, buffer: ReplayBuffer[RolloutState]) -> tuple[float, float]:
        gc.collect()
        began = time.perf_counter()
        batches, counts = await buffer.take_batch({TASK: BATCH})
        take = time.perf_counter() - began
        expect("groups taken", counts[TASK], BATCH)
        await asyncio.sleep(SETTLE_S)
        gc.collect()
        began = time.perf_counter()
        await asyncio.gather(
            *(buffer.put(group, TASK, model_step=TRAIN_STEP - 1, **PUT_RULES) for group in batches[TASK])
        )
        return take, time.perf_counter() - began

    async def bare_cycle(self) -> tuple[float, float]:
        gc.collect()
        began = time.perf_counter()
        taken = await self.bare.take(self.task_id, BATCH)
        decoded = [self.codec.decode(taken.parts[row["payload_id"]]) for row in taken.rows]
        take = time.perf_counter() - began
        expect("groups taken", len(decoded), BATCH)
        rows = await self.bare.rows_again(taken)
        await self.bare.free(taken)
        taken = Taken([], {})
        gc.collect()
        began = time.perf_counter()
        await self.bare.put(rows, [self.codec.encode(items, steps) for items, steps in decoded])
        return take, time.perf_counter() - began

    async def count(self) -> list[Row]:
        async def ours() -> None:
            await self.full_buffer.count(TASK, Status.COMPLETED)

        expect("groups", await self.full_buffer.count(TASK, Status.COMPLETED), self.stored)
        expect("groups", await self.bare.count(self.task_id), self.stored)
        return [await self.small_row("count", ours, lambda: self.bare.count(self.task_id))]

    async def is_ready(self) -> list[Row]:
        async def ours() -> None:
            await self.full_buffer.is_ready({TASK: BATCH})

        return [await self.small_row("is_ready", ours, lambda: self.bare.is_ready(self.task_id, BATCH))]

    async def small_row(
        self, what: str, ours: Callable[[], Awaitable[None]], bare: Callable[[], Awaitable[Any]]
    ) -> Row:
        """Measure a verb beside its statement and one round trip of the driver."""
        verb, statement, trip = await self.in_turn(
            lambda: average(ours), lambda: average(bare), lambda: average(self.bare.round_trip)
        )
        return Row(self.named(what), verb, statement + trip, "statement and round trip", at_most=2.0)

    async def refresh_nothing(self) -> list[Row]:
        async def nothing(buffer: ReplayBuffer[RolloutState]) -> None:
            done = await buffer.refresh_staleness(
                task_stale_thresholds={TASK: TRAIN_STEP + 1}, current_train_step=TRAIN_STEP
            )
            expect("groups expired", done[TASK], 0)

        full, bare, few = await self.in_turn(
            lambda: average(lambda: nothing(self.full_buffer)),
            lambda: average(lambda: self.bare.refresh(self.task_id, TRAIN_STEP, TRAIN_STEP + 1)),
            lambda: average(lambda: nothing(self.few_buffer)),
        )
        what = "refresh_staleness, none expire"
        return [Row(self.named(what), full, bare), self.flat_row(what, full, few)]

    async def refresh_expiring(self) -> list[Row]:
        """Expire the groups of one more model step each time."""
        model_step = -1

        async def ours() -> float:
            nonlocal model_step
            model_step += 1
            began = time.perf_counter()
            done = await self.full_buffer.refresh_staleness(
                task_stale_thresholds={TASK: TRAIN_STEP - 1 - model_step}, current_train_step=TRAIN_STEP
            )
            seconds = time.perf_counter() - began
            expect("groups expired", done[TASK], self.expiring)
            return seconds

        async def bare() -> float:
            began = time.perf_counter()
            await self.bare.refresh(self.task_id, TRAIN_STEP, TRAIN_STEP - 1 - model_step)
            return time.perf_counter() - began

        full, beside = await self.in_turn(ours, bare, at_most=self.stored // self.expiring - 2)
        return [Row(self.named(f"refresh_staleness, {self.expiring:,} expire"), full, beside)]

    async def in_turn(self, *sides: Work, at_most: int | None = None) -> list[Measure]:
        """Measure each side once, then each again, and so on, after a first round that does not count."""
        repeats = self.repeats if at_most is None else min(self.repeats, at_most)
        times: list[list[float]] = [[] for _ in sides]
        for repeat in range(repeats + 1):
            for side, values in zip(sides, times, strict=True):
                gc.collect()
                seconds = await side()
                if repeat:
                    values.append(seconds)
        return [Measure(tuple(values)) for values in times]


async def average(work: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        await work()
    return (time.perf_counter() - began) / CALLS


def expect(what: str, found: int, expected: int) -> None:
    """A benchmark that measures something else than it says is worse than none."""
    if found != expected:
        raise StoreError(f"The benchmark found {found} {what} where {expected} must be. Please report this.")


def codec_row(tokens: int, repeats: int) -> Row:
    """Encode and decode beside pickle, on the objects that a put meets."""
    codec: Codec[RolloutState] = Codec(RolloutState, response_fields=RESPONSE_FIELDS)
    groups = [make_group(tokens, seed) for seed in range(16)]
    for group in groups:
        for sample in group:
            sample.response_model_steps = [TRAIN_STEP] * tokens

    def ours() -> None:
        for group in groups:
            codec.decode(codec.encode(group, [TRAIN_STEP] * len(group)))

    def pickled() -> None:
        for group in groups:
            pickle.loads(pickle.dumps(group, pickle.HIGHEST_PROTOCOL))  # noqa: S301 - our own bytes

    times: dict[Callable[[], None], list[float]] = {ours: [], pickled: []}
    for repeat in range(repeats + 1):
        for side, values in times.items():
            gc.collect()
            began = time.perf_counter()
            side()
            if repeat:
                values.append((time.perf_counter() - began) / len(groups))
    return Row(
        f"encode and decode a group, {tokens:,} tokens",
        Measure(tuple(times[ours])),
        Measure(tuple(times[pickled])),
        "pickle",
        at_most=1.0,
    )


def import_row() -> Row:
    """How long a process waits for `import sqlreplay`."""
    code = "import time; began = time.perf_counter(); import sqlreplay; print(time.perf_counter() - began)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)  # noqa: S603 - fixed code
        for _ in range(5)
    ]
    return Row("import sqlreplay", Measure(tuple(times)), at_most=0.5)
