"""Train as GRPO does, on new rollouts and on old ones that are still worth it, drawn by their spread of rewards.

A group whose answers are all right or all wrong has no advantages, so a query leaves it out. Each batch is half the
oldest groups that were never drawn, half replay. `info.weight` makes up in the loss for being drawn more often than
others.

Prints:
    step 0: new [1, 2], replay [4, 3] with weights [1.0, 0.95], moved by 0.88
    step 1: new [8, 9], replay [1, 11] with weights [1.0, 0.85], moved by 0.81
    step 2: new [10, 15], replay [16, 18] with weights [0.95, 1.0], moved by 0.88
    step 3: new [17, 22], replay [9, 15] with weights [0.95, 1.0], moved by 0.88
    24 went in and 16 were drawn; the most stale 8 gave way
"""

import asyncio
import tempfile
from statistics import mean, pstdev

from sqlreplay import Prioritized, ReplayBuffer, RolloutState, Sample, Staleness, Status, TableConfig

ANSWERS = range(5)
CAN_TEACH = {"reward_std": {"$gt": 0}}
REPLAY = TableConfig(sampler=Prioritized(0.6, beta=0.4), remover=Staleness(), max_size=16)


def rollout(difficulty: int, model_step: int) -> list[RolloutState]:
    """Several answers to one question. The model solves a little more with every step."""
    right = model_step + 4 - difficulty
    return [
        RolloutState(
            message=[{"role": "user", "content": f"a question of difficulty {difficulty}"}],
            prompt_ids=[7, difficulty],
            response_ids=[11, attempt],
            reward={"score": float(attempt < right)},
            status=Status.COMPLETED,
        )
        for attempt in ANSWERS
    ]


def advantages(group: list[RolloutState]) -> list[float]:
    scores = [state.reward["score"] for state in group if state.reward]
    return [(score - mean(scores)) / pstdev(scores) for score in scores]


def train(batch: list[Sample[list[RolloutState]]]) -> float:
    """Stand in for a trainer: the size of a step, from advantages and importance weights."""
    return mean(info.weight * mean(map(abs, advantages(group))) for group, info in batch)


async def main(url: str) -> None:
    async with ReplayBuffer(url, tables={"math": REPLAY}, seed=3) as buffer:
        for step in range(4):
            for difficulty in range(6):
                group = rollout(difficulty, model_step=step)
                await buffer.put(group, "math", model_step=step, current_train_step=step + 1, priority="reward_std")

            batch = await buffer.sample_mixed(4, "math", fresh_ratio=0.5, where=CAN_TEACH, timeout=10)
            new, replay = [info for _, info in batch[:2]], [info for _, info in batch[2:]]
            print(
                f"step {step}: new {[info.uid for info in new]}, replay {[info.uid for info in replay]}",
                f"with weights {[round(info.weight, 2) for info in replay]}, moved by {train(batch):.2f}",
            )
            # what was trained on has less left to teach
            await buffer.update_priorities("math", {info.uid: info.priority / 2 for _, info in batch})

        math = (await buffer.stats()).tasks["math"]
        print(f"{math.inserted} went in and {math.sampled} were drawn; the most stale {math.evicted} gave way")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(f"sqlite:///{folder}/replay.db"))
