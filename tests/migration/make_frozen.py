"""Write a SQLite file as today's library makes it, to be kept for good and read by every later one.

    python tests/migration/make_frozen.py

writes `frozen/<revision>.db`, named after the newest revision. Do this once when a revision is about to be released,
and commit the file; a file that was released is never written again. While a revision is still being changed, run the
same command again. `PUT` and `EXPECTED` say what is in the file: later libraries must still give exactly that.
"""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import numpy

from sqlreplay import ReplayBuffer, RolloutState, Status
from sqlreplay.store.schema import head_revision

FROZEN = Path(__file__).parent / "frozen"
TRAIN_STEP = 9
THRESHOLD = 4


def sample(number: int, copy: int, status: Status, steps: list[int]) -> RolloutState:
    """A sample whose every value follows from its numbers, arrays and awkward floats included."""
    length = len(steps)
    return RolloutState(
        rollout_id=10 * number + copy,
        group_id=number,
        message=[{"role": "user", "content": f"prompt {number} \u00e9\u4e16 \x00"}],
        prompt_ids=list(range(number, number + 5)),
        response=f"response {number}/{copy}",
        response_ids=[1000 * number + index for index in range(length)],
        logprobs=[-0.1 * (index + 1) / (number + 1) for index in range(length)],
        response_mask=[1] * length,
        response_model_steps=steps,
        reward={"score": number / 3 + copy, "reason": float("inf")},
        status=status,
        finish_reason="stop",
        extra_fields={
            "array": numpy.arange(12, dtype=numpy.float32).reshape(3, 4) * number,
            "nested": {"shape": (number, copy), "text": "\u00fc" * copy, "large": 2**63 + number},
        },
    )


def group(number: int, status: Status, steps: list[int]) -> list[RolloutState]:
    return [sample(number, copy, status, steps) for copy in range(2)]


PUT: list[tuple[str, list[RolloutState], dict[str, Any]]] = [
    ("math", group(1, Status.COMPLETED, [7, 7, 8]), {"meta": {"source": "web", "difficulty": 0.1}}),
    ("math", group(2, Status.COMPLETED, [6, 6, 6]), {"priority": 2.5}),
    ("code", group(3, Status.ABORTED, [8, 8]), {"meta": {"source": "b\u00fccher", "is_new": True}}),
    ("math", group(4, Status.COMPLETED, [2, 3, 3]), {"meta": {"source": "old"}}),
    ("code", group(5, Status.COMPLETED, [8]), {}),
    ("math", group(6, Status.ABORTED, [1, 9]), {}),
    ("code", group(7, Status.FAILED, [5]), {}),
    ("math", group(8, Status.COMPLETED, [6, 7]), {"meta": {"difficulty": 3}}),
]

EXPECTED: dict[tuple[str, str], list[int]] = {
    ("math", "completed"): [2, 8, 1],
    ("math", "aborted"): [],
    ("math", "expired"): [6, 4],
    ("code", "completed"): [5],
    ("code", "aborted"): [3],
    ("code", "expired"): [],
    ("code", "failed"): [7],
}
"""Numbers of the groups by task and status, in the order of the staleness policy, after the refresh."""


def expected_group(number: int, status: str) -> list[RolloutState]:
    """Return a group as it comes out: as of the refresh, and without its response where that expired it."""
    (items,) = (items for _, items, _ in PUT if items[0].group_id == number)
    items = [item.model_copy(deep=True) for item in items]
    for item in items:
        if status != "failed":
            item.seq_staleness = TRAIN_STEP - min(item.response_model_steps or []) - 1
        if status == "expired":
            item.status = Status.EXPIRED
            item.tokens = list(item.prompt_ids or [])
            item.response, item.response_ids, item.logprobs, item.response_model_steps = "", [], [], []
            item.finish_reason = item.response_mask = item.reward = None
    return items


async def write(path: Path) -> None:
    async with ReplayBuffer(path, run="frozen", policy="staleness") as buffer:
        for task_name, items, options in PUT:
            await buffer.put([item.model_copy(deep=True) for item in items], task_name, **options)
        await buffer.refresh_staleness(
            task_stale_thresholds={"math": THRESHOLD, "code": THRESHOLD}, current_train_step=TRAIN_STEP
        )


def main() -> Path:
    path = FROZEN / f"{head_revision()}.db"
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    asyncio.run(write(path))
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in (
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA page_size = 2048",
        "VACUUM",
    ):
        connection.execute(statement).fetchall()
    connection.close()
    return path


if __name__ == "__main__":
    written = main()
    print(f"{written} ({written.stat().st_size} bytes)")
