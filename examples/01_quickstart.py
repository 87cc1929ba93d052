"""Put groups of rollouts, take a training batch, and find the rest after a restart.

Prints:
    stored as 1, 2, 3
    a batch of 2 with the stalest first: [1, 3] staleness [3, 1]
    after a restart 1 group still waits
"""

import asyncio
import tempfile

from sqlreplay import ReplayBuffer, RolloutState, Status


def group(number: int) -> list[RolloutState]:
    """One prompt with two sampled answers."""
    return [
        RolloutState(
            message=[{"role": "user", "content": "What is 2 + 2?"}],
            group_id=number,
            prompt_ids=[7, 8, 9],
            response=answer,
            response_ids=[11, 12],
            logprobs=[-0.1, -0.3],
            reward={"score": float(answer == "4")},
            status=Status.COMPLETED,
        )
        for answer in ("4", "5")
    ]


async def main(url: str) -> None:
    async with ReplayBuffer(url, policy="staleness") as buffer:
        # three groups from three versions of the model, while the trainer is at step 5
        uids = [
            await buffer.put(group(number), "math", model_step=model_step, current_train_step=5)
            for number, model_step in ((1, 1), (2, 4), (3, 3))
        ]
        print("stored as", ", ".join(map(str, uids)))

        batches, _ = await buffer.take_batch({"math": 2}, timeout=10)
        taken = [group[0] for group in batches["math"]]
        print(
            f"a batch of {len(taken)} with the stalest first: {[state.group_id for state in taken]}",
            f"staleness {[state.seq_staleness for state in taken]}",
        )

    async with ReplayBuffer(url) as reopened:
        print("after a restart", await reopened.count("math", Status.COMPLETED), "group still waits")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(f"sqlite:///{folder}/replay.db"))
