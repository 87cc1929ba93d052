"""What tables cost: samples at three sizes, priorities, and puts beside those into a plain task."""

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from sqlreplay import Prioritized, ReplayBuffer, TableConfig
from sqlreplay.cli.bench_report import Measure, Row
from sqlreplay.cli.bench_scratch import Scratch

__all__ = ["SIZES", "table_rows"]

SIZES = (10_000, 100_000, 1_000_000)
BATCH = 128
AT_ONCE = 512
BODY_BYTES = 7_000
SMALL_BYTES = 64
SAMPLE_S = 0.004
ROUNDS = 15
TABLE, PLAIN = "replay", "plain"
PRIORITIES = 10_000

Show = Callable[..., None]


async def table_rows(scratch: Scratch, sizes: tuple[int, int, int], repeats: int, show: Show) -> list[Row]:
    """Fill three tables, measure, and give their space back."""
    few, middle, many = sizes
    bodies = {"few": (few, SMALL_BYTES), "middle": (middle, BODY_BYTES), "many": (many, SMALL_BYTES)}
    async with AsyncExitStack() as stack:
        buffers = {}
        for name, (stored, size) in bodies.items():
            buffers[name] = await stack.enter_async_context(open_table(scratch, f"table_{name}"))
            await fill(buffers[name], stored, size, show)
        show("tables")
        samples: dict[str, list[float]] = {name: [] for name in bodies}
        for repeat in range(repeats + 1):
            for name, buffer in buffers.items():
                gc.collect()
                times = [await timed(lambda buffer=buffer: sample(buffer)) for _ in range(ROUNDS)]  # type: ignore[misc]
                if repeat:
                    samples[name] += times
        measured = {name: Measure(tuple(values)) for name, values in samples.items()}
        rows = [
            Row(
                f"sample of {BATCH}, {BODY_BYTES:,} bytes each, {middle:,} stored",
                measured["middle"],
                at_most=SAMPLE_S if scratch.is_sqlite else None,
            ),
            Row(
                f"sample of {BATCH}, {many:,} stored", measured["many"], measured["few"], f"{few:,} stored", at_most=1.5
            ),
            await priorities_row(buffers["middle"], min(PRIORITIES, middle), repeats),
            await put_row(buffers["middle"], repeats),
        ]
    await scratch.drop(*(f"table_{name}" for name in bodies))
    return rows


def open_table(scratch: Scratch, name: str) -> ReplayBuffer[bytes]:
    tables = {TABLE: TableConfig(sampler=Prioritized(0.6))}
    return ReplayBuffer(**scratch.place(name), item_type=bytes, tables=tables, seed=1)


async def fill(buffer: ReplayBuffer[bytes], stored: int, size: int, show: Show) -> None:
    draws = random.Random(stored)  # noqa: S311 - bytes to fill with
    for done in range(0, stored, AT_ONCE):
        await put_many(buffer, TABLE, [draws.randbytes(size) for _ in range(min(AT_ONCE, stored - done))])
        show(f"storing {stored:,} groups in a table", done, stored)


async def put_many(buffer: ReplayBuffer[bytes], task_name: str, bodies: list[bytes]) -> None:
    await asyncio.gather(*(buffer.put([body], task_name, priority=1 + body[0]) for body in bodies))


async def sample(buffer: ReplayBuffer[bytes]) -> None:
    await buffer.sample(BATCH, TABLE)


async def timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def priorities_row(buffer: ReplayBuffer[bytes], count: int, repeats: int) -> Row:
    uids = [item.uid for item in await buffer.find({"task_name": TABLE}, limit=count)]

    async def update() -> None:
        await buffer.update_priorities(TABLE, {uid: 1.0 + uid % 7 for uid in uids})

    return Row(f"update_priorities of {count:,}", Measure(tuple([await timed(update) for _ in range(repeats)])))


async def put_row(buffer: ReplayBuffer[bytes], repeats: int) -> Row:
    bodies = [bytes([number % 256]) * BODY_BYTES for number in range(BATCH)]
    times: dict[str, list[float]] = {TABLE: [], PLAIN: []}
    for repeat in range(repeats + 1):
        for task_name, values in times.items():
            seconds = await timed(lambda task_name=task_name: put_many(buffer, task_name, bodies))  # type: ignore[misc]
            if repeat:
                values.append(seconds)
    table, plain = (Measure(tuple(values)) for values in times.values())
    return Row(f"put into a table, {BATCH} at once, {BODY_BYTES:,} bytes each", table, plain, "into a plain task")
