"""The groups that a benchmark stores, and the process that stores them and says how much memory that took."""

import asyncio
import copy
import json
import random
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlreplay import ReplayBuffer, RolloutState, Status

__all__ = ["PUT_RULES", "TASK", "TRAIN_STEP", "fill", "make_group"]

TASK = "bench"
TRAIN_STEP = 1000
PUT_RULES: dict[str, Any] = {"current_train_step": TRAIN_STEP, "stale_threshold": 10 * TRAIN_STEP}
"""What a trainer says with each put; nothing is old enough to expire by it."""
SAMPLES = 8
DISTINCT_GROUPS = 32
PUT_TOGETHER = 512
VOCABULARY = 150_000


def make_group(tokens: int, seed: int) -> list[RolloutState]:
    """Make a prompt with eight responses of so many tokens, with everything that a trainer keeps of each."""
    chosen = random.Random(seed)  # noqa: S311 - token ids, not secrets
    prompt = chosen.choices(range(VOCABULARY), k=32)
    question = " ".join(f"word{number % 5000}" for number in prompt)
    return [
        RolloutState(
            group_id=seed,
            message=[{"role": "user", "content": question}],
            prompt_ids=prompt,
            rollout_id=seed * SAMPLES + index,
            response=" ".join(f"word{number}" for number in chosen.choices(range(5000), k=tokens)),
            response_ids=chosen.choices(range(VOCABULARY), k=tokens),
            logprobs=[-chosen.random() for _ in range(tokens)],
            response_mask=[1] * tokens,
            finish_reason="stop",
            reward={"score": float(index % 2)},
            status=Status.COMPLETED,
        )
        for index in range(SAMPLES)
    ]


async def fill(
    url: str,
    postgres_schema: str | None,
    tokens: int,
    stored: int,
    groups_per_step: int,
    report: Callable[[int], None],
) -> None:
    """Put groups through the library, in order of model step, and report how many are stored every so often."""
    distinct = [make_group(tokens, seed) for seed in range(min(stored, DISTINCT_GROUPS))]
    buffer: ReplayBuffer[RolloutState] = ReplayBuffer(url, postgres_schema=postgres_schema)
    async with buffer:
        for start in range(0, stored, PUT_TOGETHER):
            numbers = range(start, min(start + PUT_TOGETHER, stored))
            await asyncio.gather(
                *(
                    buffer.put(
                        [copy.copy(sample) for sample in distinct[number % len(distinct)]],
                        TASK,
                        model_step=number // groups_per_step,
                        **PUT_RULES,
                    )
                    for number in numbers
                )
            )
            report(numbers.stop)


def peak_bytes() -> int:
    """Return the most memory this process has held. On Linux `ru_maxrss` also counts the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Read what to store from standard input, where no other user sees a password; print progress and the peak."""
    request = json.load(sys.stdin)
    asyncio.run(fill(**request, report=lambda number: print(number, flush=True)))
    print(json.dumps({"peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
