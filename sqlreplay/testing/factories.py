"""Records for tests: small, complete and told apart by one number."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlreplay.records import RolloutState, Status

__all__ = ["make_group", "make_state", "numbers_of"]


def make_state(number: int = 1, **fields: Any) -> RolloutState:
    """Build a completed sample with two prompt and two response tokens; any field may be given.

    >>> make_state(7, response="four").rollout_id
    7
    """
    defaults: dict[str, Any] = {
        "message": [{"role": "user", "content": f"question {number}"}],
        "rollout_id": number,
        "prompt_ids": [1, 2],
        "response": f"answer {number}",
        "response_ids": [5, 6],
        "logprobs": [-0.5, -0.25],
        "response_mask": [1, 1],
        "status": Status.COMPLETED,
    }
    return RolloutState(**defaults | fields)


def make_group(number: int = 1, *, steps: Sequence[int | None] = (None, None), **fields: Any) -> list[RolloutState]:
    """Build a group whose `group_id` is the number, with one sample for each of the model steps.

    A step of None leaves a sample without `response_model_steps`.

    >>> [state.response_model_steps for state in make_group(3, steps=[8, None])]
    [[8, 8], None]
    """
    return [
        make_state(
            number * 1000 + index,
            **{
                "group_id": number,
                "response_model_steps": None if step is None else [step, step],
                **fields,
            },
        )
        for index, step in enumerate(steps)
    ]


def numbers_of(groups: Iterable[Sequence[RolloutState]]) -> list[int | None]:
    """Return the numbers that groups were made with, in the order in which they came."""
    return [group[0].group_id for group in groups]
