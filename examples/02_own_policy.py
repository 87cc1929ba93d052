"""A policy of your own: the hardest questions first, and none that every sample solved.

Prints:
    Is 2**31 - 1 prime? [0.0, 0.0]
    17 * 23? [1.0, 0.0]
    left: 1
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sqlreplay import Plan, ReplayBuffer, RolloutState, Status
from sqlreplay.store import GroupColumns


@dataclass(frozen=True)
class HardestFirst:
    """Order by the mean reward; ties go first in, first out. The database does the ordering."""

    solved: float = 1.0

    def plan(self, columns: GroupColumns) -> Plan:
        return Plan(
            order_by=(columns.reward_mean.asc(), columns.uid.asc()),
            where=columns.reward_mean < self.solved,
        )


def rollout(question: str, scores: list[float]) -> list[RolloutState]:
    return [
        RolloutState(
            message=[{"role": "user", "content": question}],
            response=f"attempt {attempt}",
            reward={"score": score},
            status=Status.COMPLETED,
        )
        for attempt, score in enumerate(scores)
    ]


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with ReplayBuffer(Path(folder) / "replay.db", policy=HardestFirst()) as buffer:
            await buffer.put(rollout("2 + 2?", [1.0, 1.0]), "math")
            await buffer.put(rollout("17 * 23?", [1.0, 0.0]), "math")
            await buffer.put(rollout("Is 2**31 - 1 prime?", [0.0, 0.0]), "math")

            for group in await buffer.get(3, "math", Status.COMPLETED):
                print(group[0].message[0]["content"], [state.reward["score"] for state in group if state.reward])
            print("left:", await buffer.size())


if __name__ == "__main__":
    asyncio.run(main())
