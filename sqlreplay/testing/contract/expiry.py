"""Which groups and samples a `put` expires, under both rules, and what is then left of them."""

from typing import Any

import pytest

from sqlreplay import ReplayBuffer, RolloutState, Status
from sqlreplay.records import Expiry
from sqlreplay.testing.factories import make_group, make_state

__all__ = ["PutExpiryContract"]


def is_reset(state: RolloutState) -> bool:
    return (
        state.tokens == state.prompt_ids
        and state.response == ""
        and state.response_ids == state.logprobs == state.response_model_steps == []
        and {state.finish_reason, state.error_msg} == {None}
        and all(value is None for value in (state.response_mask, state.reward, state.routed_experts))
    )


def keeps_its_response(state: RolloutState) -> bool:
    return state.response_ids == [5, 6] and str(state.response).startswith("answer")


async def put_and_read(
    url: str, group: list[RolloutState], expiry: Expiry = "group", **rules: Any
) -> tuple[Status, list[RolloutState]]:
    """Put a group, and return the status it waits as and what a read gives."""
    async with ReplayBuffer(url, expiry=expiry) as buffer:
        await buffer.put(group, "math", **rules)
        [found] = await buffer.find()
    assert [state.model_dump() for state in found.item] == [state.model_dump() for state in group]
    return found.status, found.item


class PutExpiryContract:
    """The rows of the expiry table, for `put`; what is read always equals what the caller's objects have become."""

    async def test_by_group_one_stale_sample_expires_all(self, url: str) -> None:
        status, items = await put_and_read(
            url, make_group(steps=[2, 8], reward={"score": 1.0}), current_train_step=10, stale_threshold=7
        )
        assert status is Status.EXPIRED
        assert [state.status for state in items] == [Status.EXPIRED] * 2
        assert all(map(is_reset, items))
        assert [state.seq_staleness for state in items] == [7, 1]

    async def test_by_sample_only_the_stale_sample_expires(self, url: str) -> None:
        status, items = await put_and_read(
            url, make_group(steps=[2, 8]), "sample", current_train_step=10, stale_threshold=7
        )
        assert status is Status.EXPIRED
        assert [state.status for state in items] == [Status.EXPIRED, Status.COMPLETED]
        assert is_reset(items[0])
        assert keeps_its_response(items[1])
        assert items[1].response_model_steps == [8, 8]

    @pytest.mark.parametrize("expiry", ["group", "sample"])
    async def test_below_the_threshold_nothing_expires(self, url: str, expiry: Expiry) -> None:
        status, items = await put_and_read(
            url, make_group(steps=[2, 8]), expiry, current_train_step=10, stale_threshold=8
        )
        assert status is Status.COMPLETED
        assert all(map(keeps_its_response, items))

    @pytest.mark.parametrize("expiry", ["group", "sample"])
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            (Status.COMPLETED, Status.EXPIRED),
            (Status.ABORTED, Status.EXPIRED),
            (Status.FAILED, Status.FAILED),
            (Status.FILTERED, Status.FILTERED),
        ],
    )
    async def test_completed_and_aborted_groups_expire(
        self, url: str, expiry: Expiry, given: Status, expected: Status
    ) -> None:
        group = make_group(steps=[1, 1], status=given)
        status, items = await put_and_read(url, group, expiry, current_train_step=10, stale_threshold=3)
        assert status is expected
        assert [state.status for state in items] == [expected] * 2
        assert all(map(is_reset if expected is Status.EXPIRED else keeps_its_response, items))

    async def test_by_sample_fresh_members_of_an_expired_group_expire(self, url: str) -> None:
        group = [
            make_state(1, status=Status.EXPIRED),
            make_state(2, response_model_steps=[1, 1]),
            make_state(3, response_model_steps=[9, 9]),
        ]
        status, items = await put_and_read(url, group, "sample", current_train_step=10, stale_threshold=3)
        assert status is Status.EXPIRED
        assert [is_reset(state) for state in items] == [True, True, False]
        assert items[2].status is Status.COMPLETED

    @pytest.mark.parametrize(("expiry", "expected"), [("group", "expired"), ("sample", "completed")])
    async def test_without_a_train_step_only_the_group_rule_judges(
        self, url: str, expiry: Expiry, expected: str
    ) -> None:
        group = [make_state(1, seq_staleness=4), make_state(2)]
        status, items = await put_and_read(url, group, expiry, stale_threshold=4)
        assert status.value == expected
        assert all(map(is_reset if expected == "expired" else keeps_its_response, items))
        assert [state.seq_staleness for state in items] == [4, 0]

    @pytest.mark.parametrize(
        ("expiry", "step", "reset"),
        [("group", None, True), ("group", 5, True), ("sample", None, False), ("sample", 5, True)],
    )
    async def test_a_group_put_as_expired(self, url: str, expiry: Expiry, step: int | None, reset: bool) -> None:
        group = make_group(status=Status.EXPIRED)
        status, items = await put_and_read(url, group, expiry, current_train_step=step)
        assert status is Status.EXPIRED
        assert all(map(is_reset if reset else keeps_its_response, items))

    @pytest.mark.parametrize("expiry", ["group", "sample"])
    async def test_the_token_threshold_goes_by_sample(self, url: str, expiry: Expiry) -> None:
        group = [
            make_state(1, response_model_steps=[1, 4]),
            make_state(2, response_model_steps=[1, 7]),
            make_state(3, response_model_steps=[1, 7], response_mask=[1, 0]),
        ]
        status, items = await put_and_read(url, group, expiry, current_train_step=10, token_stale_threshold=5)
        assert status is Status.EXPIRED
        assert [is_reset(state) for state in items] == [True, False, True]
        assert [state.status.value for state in items] == ["expired", "completed", "expired"]

    @pytest.mark.parametrize("expiry", ["group", "sample"])
    @pytest.mark.parametrize(
        "exempt",
        [
            {"response_mask": [0, 0]},
            {"response_ids": [], "logprobs": [], "response_mask": []},
            {"input_ids": [1, 2, 5, 6]},
            {"labels": [-100, -100, 5, 6]},
        ],
        ids=["masked", "no response", "input_ids", "labels"],
    )
    async def test_tokens_that_never_expire(self, url: str, expiry: Expiry, exempt: dict[str, Any]) -> None:
        group = [make_state(1, response_model_steps=[1, 1], **exempt)]
        if "input_ids" in exempt or "labels" in exempt:
            group.append(make_state(2, response_model_steps=[1, 1]))
        status, items = await put_and_read(url, group, expiry, current_train_step=10, token_stale_threshold=2)
        assert status is Status.COMPLETED
        assert [state.response for state in items] == [f"answer {state.rollout_id}" for state in items]

    async def test_what_a_new_rollout_needs_stays(self, url: str) -> None:
        kept: dict[str, Any] = {
            "mm_info": {"num_img_tokens": [3]},
            "extra_fields": {"source": "web"},
            "reward_model": {"style": "rule"},
            "session_id": 5,
        }
        group = make_group(steps=[1, 1], **kept)
        _, items = await put_and_read(url, group, current_train_step=10, stale_threshold=2)
        assert [state.message for state in items] == [state.message for state in make_group()]
        assert [state.prompt_ids for state in items] == [[1, 2], [1, 2]]
        for name, value in kept.items():
            assert [getattr(state, name) for state in items] == [value, value]

    @pytest.mark.parametrize("expiry", ["group", "sample"])
    async def test_what_is_not_retryable_is_dropped_and_released(self, url: str, expiry: Expiry) -> None:
        group = make_group(steps=[1, 9], extra_fields={"large": "value"}, reward={"score": 1.0})
        async with ReplayBuffer(url, expiry=expiry) as buffer:
            uid = await buffer.put(
                group, "math", current_train_step=10, stale_threshold=2, expired_groups_retryable=False
            )
            assert uid is None
            assert await buffer.size() == 0
        assert [state.status for state in group] == [Status.EXPIRED] * 2
        assert [state.rollout_id for state in group] == [1000, 1001]
        for state in group:
            for name in ("prompt_ids", "response", "response_ids", "logprobs", "response_mask", "reward"):
                assert getattr(state, name) is None
            assert state.extra_fields == {}

    async def test_not_retryable_stores_what_is_fresh(self, url: str) -> None:
        group = make_group(steps=[8, 9])
        status, items = await put_and_read(
            url, group, current_train_step=10, stale_threshold=2, expired_groups_retryable=False
        )
        assert status is Status.COMPLETED
        assert all(map(keeps_its_response, items))
