"""What the store indexes of a group, measured from its samples."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlreplay.records import reader, step_span

__all__ = ["GroupNumbers", "group_numbers"]

Read = Callable[[str], Any]
SOLVED = 1.0
SEQUENCES = (("input_ids",), ("prompt_ids", "response_ids"), ("tokens",))


class GroupNumbers(NamedTuple):
    """Numbers of a group; `steps` are the samples' oldest model steps.

    `latest_step` is the newest of those: once it is past a cutoff, every sample is. It is None where a sample never
    ages. `token_fresh_step` is the smallest, over the samples, of the newest step of a token that counts for the loss.
    `solve_rate` is the share of the scored samples that have a score of at least 1.
    """

    steps: list[int | None]
    oldest_step: int | None
    latest_step: int | None
    token_fresh_step: int | None
    staleness: int
    num_tokens: int
    reward_mean: float | None
    reward_std: float | None
    solve_rate: float | None


def group_numbers(group: Sequence[Any], *, model_step: int | None) -> GroupNumbers:
    """Measure a group. Items with no place for steps take the model step of the put."""
    reads = [reader(item) for item in group]
    spans = [step_span(read) for read in reads]
    steps = [span[0] if carries_steps(item) else model_step for item, span in zip(group, spans, strict=True)]
    known = [step for step in steps if step is not None]
    agentic = any(read("input_ids") is not None or read("labels") is not None for read in reads)
    fresh = [] if agentic else [newest for _, newest in spans if newest is not None]
    scores = [score for read in reads if (score := score_of(read)) is not None]
    mean, deviation = mean_and_deviation(scores)
    return GroupNumbers(
        steps=steps,
        oldest_step=min(known, default=None),
        latest_step=max(known) if known and len(known) == len(steps) else None,
        token_fresh_step=min(fresh, default=None),
        staleness=max((read("seq_staleness") or 0) for read in reads),
        num_tokens=sum(map(count_tokens, reads)),
        reward_mean=mean,
        reward_std=deviation,
        solve_rate=sum(score >= SOLVED for score in scores) / len(scores) if scores else None,
    )


def carries_steps(item: Any) -> bool:
    if isinstance(item, dict):
        return "response_ids" in item or "response_model_steps" in item
    return hasattr(item, "response_model_steps")


def score_of(read: Read) -> float | None:
    """Return a sample's reward where it is a finite number, or has one under `score`."""
    reward = read("reward")
    score = reward.get("score") if isinstance(reward, dict) else reward
    if isinstance(score, (int, float)) and abs(score) < math.inf:
        return float(score)
    return None


def mean_and_deviation(values: list[float]) -> tuple[float | None, float | None]:
    """Return the mean and the population's standard deviation; None for both where there is no finite answer."""
    if not values:
        return None, None
    mean = sum(values) / len(values)
    try:
        deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    except OverflowError:
        return None, None
    return (mean, deviation) if math.isfinite(deviation) else (None, None)


def count_tokens(read: Read) -> int:
    """Count the tokens a trainer would see: the whole agentic sequence, else prompt and response."""
    for names in SEQUENCES:
        found = [value for name in names if (value := read(name)) is not None]
        if found:
            return sum(map(len, found))
    return int(read("num_tokens") or 0)
