"""The record and its rules, without a database."""

from typing import Any

import numpy
import pytest
from pydantic import BaseModel, ValidationError

from sqlreplay import (
    RolloutFunctionCall,
    RolloutState,
    RolloutToolCall,
    SampleParams,
    Status,
    get_group_status,
    maybe_expire_group,
    refresh_seq_staleness,
    reset_rollout_response,
    update_sample_version,
)
from sqlreplay.records import Expiry
from sqlreplay.testing import make_group, make_state

FIELDS: dict[str, Any] = {
    "group_id": None,
    "prompt_ids": None,
    "num_tokens": None,
    "proxy_attn_flops": None,
    "data_source": None,
    "mm_info": None,
    "reward_model": None,
    "session_id": None,
    "tokens": None,
    "tools": None,
    "tool_choice": None,
    "sample_params": SampleParams(),
    "response": None,
    "tool_calls": None,
    "response_ids": None,
    "logprobs": None,
    "routed_experts": None,
    "finish_reason": None,
    "response_mask": None,
    "response_model_steps": None,
    "seq_staleness": 0,
    "input_ids": None,
    "labels": None,
    "reward": None,
    "rollout_id": None,
    "uid": None,
    "task_name": None,
    "status": Status.INIT,
    "error_msg": None,
    "position_ids": None,
    "extra_fields": {},
}
SAMPLE_PARAMS: dict[str, Any] = {
    "n": 1,
    "top_k": 0,
    "top_p": 1.0,
    "temperature": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "max_tokens": 2048,
    "stops": [],
    "stop_token_ids": [],
    "skip_special_tokens": True,
    "sampling_seed": None,
    "stream": False,
    "return_logprob": True,
    "top_logprobs": 1,
    "return_token_ids": True,
    "include_stop_str_in_output": True,
    "no_stop_trim": True,
    "spaces_between_special_tokens": False,
    "return_routed_experts": True,
}


def statuses(group: list[RolloutState]) -> list[str]:
    return [state.status.value for state in group]


def responses(group: list[RolloutState]) -> list[str | None]:
    return [state.response for state in group]


def test_fields_and_defaults_of_the_record() -> None:
    state = RolloutState(message=[{"role": "user", "content": "p"}])
    assert {name: getattr(state, name) for name in RolloutState.model_fields if name != "message"} == FIELDS
    with pytest.raises(ValidationError, match="message"):
        RolloutState()  # type: ignore[call-arg]


def test_defaults_of_the_sampling_parameters() -> None:
    found = SampleParams().model_dump()
    assert found == SAMPLE_PARAMS
    assert [type(value) for value in found.values()] == [type(value) for value in SAMPLE_PARAMS.values()]


def test_defaults_of_tool_calls() -> None:
    call = RolloutToolCall(id="1", function=RolloutFunctionCall(name="search"))
    assert call.model_dump() == {
        "id": "1",
        "type": "function",
        "function": {"name": "search", "arguments": {}, "raw_arguments_text": None},
    }


def test_statuses() -> None:
    assert [status.value for status in Status] == [
        "init",
        "completed",
        "aborted",
        "expired",
        "failed",
        "filtered",
        "archived",
    ]
    assert Status.COMPLETED == "completed"


@pytest.mark.parametrize(
    ("model", "required"),
    [
        (RolloutState, {"message": []}),
        (SampleParams, {}),
        (RolloutFunctionCall, {"name": "f"}),
        (RolloutToolCall, {"id": "1", "function": {"name": "f"}}),
    ],
)
def test_extra_fields_are_refused(model: type[BaseModel], required: dict[str, Any]) -> None:
    model(**required)
    with pytest.raises(ValidationError, match="unheard_of"):
        model(**required, unheard_of=1)


def test_multimodal_data_holds_arrays_and_nothing_unknown() -> None:
    pixels = numpy.zeros((2, 3), dtype=numpy.float32)
    state = RolloutState(message=[], mm_info={"pixel_values": pixels}, routed_experts=pixels, position_ids=pixels)
    assert state.mm_info is not None
    assert state.mm_info["pixel_values"] is pixels
    assert state.routed_experts is state.position_ids is pixels
    with pytest.raises(ValidationError):
        RolloutState(message=[], mm_info={"sound": pixels})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"rollout_id": 1}, 1), ({"uid": 2}, 2), ({"rollout_id": 1, "uid": 2}, 1), ({}, None), ({"uid": 0}, 0)],
)
def test_uid_and_rollout_id_follow_each_other(given: dict[str, int], expected: int | None) -> None:
    state = RolloutState(message=[], **given)  # type: ignore[arg-type]
    assert state.rollout_id == state.uid == expected


def test_default_values_are_not_shared() -> None:
    first, second = RolloutState(message=[]), RolloutState(message=[])
    first.extra_fields["a"] = 1
    first.sample_params.stops.append("x")
    assert second.extra_fields == {}
    assert second.sample_params.stops == []


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ("completed completed", "completed"),
        ("filtered expired aborted failed", "failed"),
        ("filtered expired aborted completed", "aborted"),
        ("filtered expired completed", "expired"),
        ("filtered completed", "filtered"),
        ("init completed", "completed"),
        ("init", "completed"),
        ("archived", "completed"),
    ],
)
def test_the_status_of_a_group(samples: str, expected: str) -> None:
    group = [make_state(status=Status(name)) for name in samples.split()]
    assert get_group_status(group) is Status(expected)
    assert get_group_status([{"status": name} for name in samples.split()]) is Status(expected)


@pytest.mark.parametrize(
    ("steps", "ids", "expected"),
    [
        (None, [1, 2, 3], [4, 4, 4]),
        ([], [1, 2, 3], [4, 4, 4]),
        ([1, 2], [1, 2, 3], [1, 2, 4]),
        ([1, 2, 3], [1, 2, 3], [1, 2, 3]),
        ([1, 2, 3], [1, 2], [1, 2, 3]),
    ],
)
def test_update_sample_version(steps: list[int] | None, ids: list[int], expected: list[int]) -> None:
    state = make_state(response_ids=ids, response_model_steps=steps)
    update_sample_version(state, 4)
    assert state.response_model_steps == expected


def test_update_sample_version_leaves_the_given_list_alone() -> None:
    steps = [1]
    state = make_state()
    state.response_model_steps = steps
    update_sample_version(state, 4)
    assert steps == [1]


def test_refresh_seq_staleness() -> None:
    group = make_group(steps=[3, 6, None], seq_staleness=50)
    group[0].response_model_steps = [9, 3, 5]
    refresh_seq_staleness(group, 7)
    assert [state.seq_staleness for state in group] == [3, 0, 0]
    group[2].response_model_steps = []
    refresh_seq_staleness(group, 3)
    assert [state.seq_staleness for state in group] == [-1, -4, 0]


def test_reset_rollout_response() -> None:
    kept: dict[str, Any] = {
        "message": [{"role": "user", "content": "p"}],
        "prompt_ids": [1, 2],
        "mm_info": {"num_img_tokens": [3]},
        "extra_fields": {"a": 1},
        "status": Status.ABORTED,
        "seq_staleness": 4,
        "session_id": 5,
        "data_source": "web",
        "reward_model": {"style": "rule"},
        "num_tokens": 9,
    }
    state = make_state(
        1,
        **kept,
        tokens=[1, 2, 5, 6],
        routed_experts=[1],
        finish_reason="stop",
        reward={"score": 1},
        error_msg="none",
        response_model_steps=[1, 1],
    )
    reset_rollout_response(state)
    assert state.tokens == [1, 2]
    assert state.tokens is not state.prompt_ids
    assert state.response == ""
    for name in ("response_ids", "logprobs", "response_model_steps"):
        assert getattr(state, name) == []
    for name in ("routed_experts", "finish_reason", "response_mask", "reward", "error_msg"):
        assert getattr(state, name) is None
    for name, value in kept.items():
        assert getattr(state, name) == value
    other = reset_rollout_response(make_state(2, prompt_ids=None, tokens=[1]))
    assert other.tokens is None
    other.response_ids.append(1)
    assert state.response_ids == []


@pytest.mark.parametrize(
    ("expiry", "expected"), [("group", ["expired", "expired"]), ("sample", ["expired", "completed"])]
)
def test_the_sequence_threshold(expiry: Expiry, expected: list[str]) -> None:
    group = refresh_seq_staleness(make_group(1, steps=[2, 8]), 10)
    maybe_expire_group(group, 8, current_train_step=10, expiry=expiry)
    assert statuses(list(group)) == ["completed", "completed"]
    maybe_expire_group(group, 7, current_train_step=10, expiry=expiry)
    assert statuses(list(group)) == expected
    assert responses(list(group)) == ["", "" if expected[1] == "expired" else "answer 1001"]
    assert get_group_status(group) is Status.EXPIRED


@pytest.mark.parametrize("expiry", ["group", "sample"])
@pytest.mark.parametrize("status", list(Status))
def test_which_groups_expire(expiry: Expiry, status: Status) -> None:
    group = make_group(1, steps=[1, 1], status=status, seq_staleness=8)
    maybe_expire_group(group, 2, current_train_step=10, expiry=expiry)
    expires = get_group_status(make_group(status=status)) in (Status.COMPLETED, Status.ABORTED, Status.EXPIRED)
    assert statuses(group) == (["expired"] * 2 if expires else [status.value] * 2)
    assert responses(group) == (["", ""] if expires else ["answer 1000", "answer 1001"])


@pytest.mark.parametrize(("expiry", "expected"), [("group", "expired"), ("sample", "completed")])
def test_without_a_train_step_only_the_group_rule_judges(expiry: Expiry, expected: str) -> None:
    group = make_group(1, seq_staleness=5)
    maybe_expire_group(group, 5, expiry=expiry)
    assert statuses(group) == [expected] * 2


@pytest.mark.parametrize(
    ("expiry", "step", "expected"),
    [("group", None, ""), ("group", 5, ""), ("sample", None, "answer 1000"), ("sample", 5, "")],
)
def test_a_group_that_is_already_expired(expiry: Expiry, step: int | None, expected: str) -> None:
    group = make_group(1, status=Status.EXPIRED)
    maybe_expire_group(group, current_train_step=step, expiry=expiry)
    assert group[0].response == expected


def test_by_sample_fresh_members_of_expired_groups_expire() -> None:
    group = make_group(1, steps=[None, 2, 9])
    group[0].status = Status.EXPIRED
    refresh_seq_staleness(group, 10)
    maybe_expire_group(group, 5, current_train_step=10, expiry="sample")
    assert statuses(group) == ["expired", "expired", "completed"]
    assert responses(group) == ["", "", "answer 1002"]


@pytest.mark.parametrize("expiry", ["group", "sample"])
def test_the_token_threshold_goes_by_sample(expiry: Expiry) -> None:
    group = [
        make_state(1, response_model_steps=[1, 4]),
        make_state(2, response_model_steps=[1, 5]),
        make_state(3, response_model_steps=[1, 5], response_mask=[1, 0]),
        make_state(4, response_model_steps=[1, 1], response_mask=[0, 0]),
        make_state(5, response_model_steps=[1, 1], response_ids=[]),
        make_state(6, response_model_steps=[1, 4], response_mask=None),
        make_state(7),
    ]
    maybe_expire_group(group, token_stale_threshold=5, current_train_step=10, expiry=expiry)
    assert [state.status is Status.EXPIRED for state in group] == [True, False, True, False, False, True, False]


@pytest.mark.parametrize("field", ["input_ids", "labels"])
@pytest.mark.parametrize("expiry", ["group", "sample"])
def test_agentic_groups_are_exempt_from_the_token_threshold(expiry: Expiry, field: str) -> None:
    group = [make_state(1, response_model_steps=[1, 1]), make_state(2, response_model_steps=[1, 1], **{field: [1]})]
    maybe_expire_group(group, token_stale_threshold=1, current_train_step=10, expiry=expiry)
    assert statuses(group) == ["completed"] * 2
    refresh_seq_staleness(group, 10)
    maybe_expire_group(group, 8, current_train_step=10, expiry=expiry)
    assert statuses(group) == ["expired"] * 2
