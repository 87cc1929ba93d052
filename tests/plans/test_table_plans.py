"""Every selector walks an index, as sampler and as remover, with 100,000 groups in tables."""

import sqlite3
import warnings
from typing import Any

import asyncpg
from explain import QueryPlan, Statement, explain, spying

from sqlreplay import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, ReplayBuffer, Staleness, TableConfig, Uniform

SELECTORS: dict[str, Any] = {
    "fifo": Fifo(),
    "lifo": Lifo(),
    "uniform": Uniform(),
    "prioritized": Prioritized(0.6),
    "minheap": MinHeap(),
    "maxheap": MaxHeap(),
    "staleness": Staleness(),
}
EACH = 100_000 // len(SELECTORS)
COLUMNS = (
    "uid, task_id, status, stale_from_step, oldest_step, latest_step, staleness, refresh_number, priority,"
    " num_samples, num_tokens, size_bytes, created_at, payload_id, born_epoch, written_epoch"
)
FILL = f"""
    INSERT INTO sqlreplay_groups ({COLUMNS})
    SELECT 1000000 * task.id + number, task.id, 'completed', 1001 + number % 1000, 1000 + number % 1000,
           1000 + number % 1000, 0, 0, 1 + number % 97, 8, 4096, 100, 0, 1, 0, 0
    FROM numbers CROSS JOIN sqlreplay_tasks task
"""


async def fill(url: str) -> None:
    """Store many groups in each task, all with the bytes of the first one."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        numbers = f"WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers LIMIT {EACH})"
        connection.execute(f"{numbers} {FILL}")
        connection.commit()
        connection.close()
    else:
        server = await asyncpg.connect(url)
        numbers = f"WITH numbers AS (SELECT number FROM generate_series(1, {EACH}) AS series (number))"
        await server.execute(f"{numbers} {FILL}")
        await server.execute("SELECT setval('sqlreplay_groups_uid_seq', (SELECT max(uid) FROM sqlreplay_groups))")
        await server.close()


async def plans_of(url: str, statements: list[Statement], name: str) -> list[QueryPlan]:
    """Return the plans of a statement: for these parameters and, on Postgres, for any."""
    found = [statement for statement in statements if statement.name == name]
    assert found, f"no statement {name!r}"
    plans = [await explain(url, statement) for statement in found]
    if url.startswith("postgresql"):
        plans += [await explain(url, statement, generic=True) for statement in found]
    return plans


async def test_samples_and_evictions_read_the_first_of_an_index(url: str) -> None:
    """The stored key is in order, whatever it means: nothing is sorted, and nothing else is read."""
    async with ReplayBuffer(url, item_type=dict) as buffer:
        for name in SELECTORS:
            await buffer.put([{"any": "group"}], name)
        await fill(url)
        for name, selector in SELECTORS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a Fifo sampler with a Fifo remover
                config = TableConfig(sampler=selector, remover=selector, max_size=EACH + 1)
            await buffer.set_table(name, config)
        if url.startswith("postgresql"):
            server = await asyncpg.connect(url)
            await server.execute("VACUUM ANALYZE sqlreplay_groups")
            await server.close()
        for name in SELECTORS:
            async with spying(buffer) as statements:
                assert len({info.uid for _, info in await buffer.sample(8, name)}) == 8
                stored = await buffer.put([{"any": "group"}], name)
                assert stored is not None
                assert len(stored.evicted) == 1
            for plan in await plans_of(url, statements, "sample"):
                plan.expect(index="race")
            for plan in await plans_of(url, statements, "next_to_evict"):
                plan.expect(index="evict")
        async with spying(buffer) as statements:
            assert len(await buffer.sample_mixed(8, "prioritized")) == 8
        for plan in await plans_of(url, statements, "sample_fresh"):
            plan.expect(index="never_drawn")
