"""Give an XTuner trainer a replay buffer on a database: one configuration in the place of XTuner's own.

With XTuner installed, pass its classes: item_type=RolloutState, status_type=Status. Here sqlreplay's twins serve.

Prints:
    waiting: 3 completed, 0 expired
    batch for step 6: groups [2]
    expired by the refresh to step 8: {'math': 1}
    to be rolled out again: group 1 with response '' and prompt [7, 8, 9]
    left after a restart: [3]
"""

import asyncio
import tempfile

from sqlreplay import RolloutState, Status
from sqlreplay.contrib.xtuner import SqlReplayBufferConfig


def group(number: int) -> list[RolloutState]:
    """One prompt with two sampled answers."""
    return [
        RolloutState(
            message=[{"role": "user", "content": "What is 2 + 2?"}],
            group_id=number,
            prompt_ids=[7, 8, 9],
            response=answer,
            response_ids=[11, 12],
            status=Status.COMPLETED,
        )
        for answer in ("4", "5")
    ]


async def main(url: str) -> None:
    config = SqlReplayBufferConfig(
        url=url, policy="staleness", run="experiment-1", item_type=RolloutState, status_type=Status
    )
    buffer = config.build()
    for number, model_step in ((1, 3), (2, 2), (3, 5)):
        await buffer.put(group(number), "math", model_step=model_step, current_train_step=6, stale_threshold=4)
    counts = (await buffer.count_statuses(["math"], [Status.COMPLETED, Status.EXPIRED]))["math"]
    print(f"waiting: {counts[Status.COMPLETED]} completed, {counts[Status.EXPIRED]} expired")

    # one transaction: no other process gets the same group
    batches, _ = await buffer.take_batch({"math": 1})
    print("batch for step 6: groups", [samples[0].group_id for samples in batches["math"]])

    expired = await buffer.refresh_staleness(task_stale_thresholds={"math": 4}, current_train_step=8)
    print("expired by the refresh to step 8:", expired)
    [again] = await buffer.get(1, "math", Status.EXPIRED)
    print(
        f"to be rolled out again: group {again[0].group_id}",
        f"with response {again[0].response!r} and prompt {again[0].prompt_ids}",
    )
    await buffer.close()

    # the same configuration goes on where the last process stopped
    async with config.build() as resumed:
        print("left after a restart:", [found.item[0].group_id for found in await resumed.find()])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(f"sqlite:///{folder}/replay.db"))
