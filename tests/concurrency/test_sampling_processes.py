"""Four processes draw from one table at once: together they draw what each group's weight says, and count it once."""

import asyncio
import itertools
import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from typing import Any

from sqlreplay import Prioritized, ReplayBuffer, TableConfig

PROCESSES, BATCHES = 4, 400
WEIGHTS = [1.0, 2.0, 4.0, 8.0]
LARGEST_CHI_SQUARE = 30.7
"""With three degrees of freedom a right sampler is above this once in a million."""

Drawn = list[tuple[int, int]]
barrier: Barrier


def open_buffer(url: str) -> ReplayBuffer[dict[str, Any]]:
    return ReplayBuffer(url, item_type=dict, tables={"math": TableConfig(sampler=Prioritized(1.0))}, seed=1)


def join(shared: Barrier) -> None:
    global barrier
    barrier = shared


def draw_many(url: str) -> Drawn:
    """Draw, once all processes are there, and return each uid with the number of draws it then had."""

    async def draw() -> Drawn:
        async with open_buffer(url) as buffer:
            await asyncio.to_thread(barrier.wait, 60)
            samples = [await buffer.sample(1, "math") for _ in range(BATCHES)]
        return [(info.uid, info.times_sampled) for [(_, info)] in samples]

    return asyncio.run(draw())


async def test_processes_draw_by_weight_together(url: str) -> None:
    async with open_buffer(url) as buffer:
        uids = [int(await buffer.put([{}], "math", priority=weight) or 0) for weight in WEIGHTS]
        context = multiprocessing.get_context("spawn")
        shared = context.Barrier(PROCESSES)
        with ProcessPoolExecutor(PROCESSES, context, join, (shared,)) as pool:
            running = [asyncio.wrap_future(pool.submit(draw_many, url)) for _ in range(PROCESSES)]
            drawn = await asyncio.gather(*running)

        counts = Counter(uid for found in drawn for uid, _ in found)
        expected = {uid: PROCESSES * BATCHES * weight / sum(WEIGHTS) for uid, weight in zip(uids, WEIGHTS, strict=True)}
        assert counts.total() == PROCESSES * BATCHES
        assert counts.keys() <= expected.keys()
        chi_square = sum((counts[uid] - number) ** 2 / number for uid, number in expected.items())
        assert chi_square < LARGEST_CHI_SQUARE, f"expected {expected}, found {counts}"
        for uid in uids:
            assert await buffer.count_where({"uid": uid, "times_sampled": counts[uid]}) == 1
            numbers = sorted(number for found in drawn for each, number in found if each == uid)
            assert numbers == list(range(1, counts[uid] + 1)), "a draw was counted twice, or not at all"
    of_heaviest = [[number for uid, number in found if uid == uids[-1]] for found in drawn]
    together = [later - earlier > 1 for found in of_heaviest for earlier, later in itertools.pairwise(found)]
    assert any(together), "the processes went one after the other, so this run showed nothing"
