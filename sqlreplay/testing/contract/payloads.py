"""Item types: what may be put, and that it comes back as it was."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from sqlreplay import PayloadUnsupported, ReplayBuffer, Status
from sqlreplay.testing.factories import make_group, make_state

__all__ = ["PayloadContract"]

HOSTILE_TEXT = "NUL \x00, half a pair \ud800, astral \U0001f600, quotes '\"\\, newline\n"


class Verdict(Enum):
    """Another library's statuses: same values, more of them."""

    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    JUDGED = "judged"


class Model(BaseModel):
    question: str
    scores: list[float] = []
    nested: dict[str, Any] = {}


@dataclass
class Record:
    question: str
    scores: list[float] = field(default_factory=list)


class Plain:
    def __init__(self, question: str) -> None:
        self.question = question.upper()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class ForeignState(BaseModel):
    """The protocol's fields that matter here, in a class of its own."""

    model_config = ConfigDict(extra="forbid")

    prompt_ids: list[int]
    response: str | None = None
    response_ids: list[int] | None = None
    response_model_steps: list[int] | None = None
    tokens: list[int] | None = None
    seq_staleness: int = 0
    status: Verdict = Verdict.COMPLETED


class PayloadContract:
    """Items of any type, with every byte they had."""

    @pytest.mark.parametrize(
        "items",
        [
            [Model(question="a", scores=[0.5], nested={"b": [1, None]}), Model(question="c")],
            [Record("a", [1.0, 2.5]), Record("b")],
            [Plain("a"), Plain("b")],
            [{"a": 1, "b": [b"raw", None, True]}, {}],
            [b"raw\x00bytes", b""],
        ],
        ids=["pydantic", "dataclass", "plain class", "dict", "bytes"],
    )
    async def test_item_types(self, url: str, items: list[Any]) -> None:
        async with ReplayBuffer(url, item_type=type(items[0])) as buffer:
            await buffer.put(items, "math", model_step=3, current_train_step=5)
            [found] = await buffer.find()
            assert found.item == items
            assert found.status is Status.COMPLETED
            [taken] = await buffer.get(1, "math", Status.COMPLETED)
        assert taken == items
        assert [type(item) for item in taken] == [type(item) for item in items]

    @pytest.mark.parametrize("kind", [Record, Plain, bytes], ids=["dataclass", "plain class", "bytes"])
    async def test_items_without_steps_age_by_the_model_step_of_the_put(self, url: str, kind: type[Any]) -> None:
        items: list[Any] = [b"one"] if kind is bytes else [kind("one")]
        async with ReplayBuffer(url, item_type=kind) as buffer:
            await buffer.put(items, "math", model_step=3)
            assert await buffer.refresh_staleness(task_stale_thresholds={"math": 6}, current_train_step=9) == {
                "math": 0
            }
            assert (await buffer.find())[0].staleness == 5
            assert await buffer.refresh_staleness(task_stale_thresholds={"math": 6}, current_train_step=10) == {
                "math": 1
            }
            assert await buffer.get(1, "math", Status.EXPIRED) == [items]

    async def test_dicts_with_the_records_keys_follow_its_rules(self, url: str) -> None:
        item = {
            "prompt_ids": [1],
            "tokens": None,
            "response": "a",
            "response_ids": [2, 3],
            "response_model_steps": [1],
            "seq_staleness": 0,
            "status": "completed",
        }
        async with ReplayBuffer(url, item_type=dict) as buffer:
            await buffer.put([item], "math", model_step=4, current_train_step=6)
            assert item["response_model_steps"] == [1, 4]
            assert item["seq_staleness"] == 4
            await buffer.refresh_staleness(task_stale_thresholds={"math": 5}, current_train_step=7)
            [[expired]] = await buffer.get(1, "math", "expired")
        assert (expired["status"], expired["response"], expired["response_ids"]) == ("expired", "", [])
        assert (expired["tokens"], expired["seq_staleness"]) == ([1], 5)

    async def test_another_librarys_class_keeps_its_own_enum(self, url: str) -> None:
        fresh = ForeignState(prompt_ids=[1], response="a", response_ids=[2])
        stale = ForeignState(prompt_ids=[1], response="b", response_ids=[3])
        async with ReplayBuffer(url, item_type=ForeignState) as buffer:
            await buffer.put([fresh], "math", model_step=8)
            await buffer.put([stale], "math", model_step=1, current_train_step=9, stale_threshold=4)
            assert stale.status is Verdict.EXPIRED
            assert stale.response == ""
            assert [found.status for found in await buffer.find()] == [Verdict.COMPLETED, Verdict.EXPIRED]
            counts = await buffer.count_statuses(["math"], list(Verdict))
            assert counts["math"][Verdict.EXPIRED] == 1
            assert await buffer.refresh_staleness(task_stale_thresholds={"math": 4}, current_train_step=20) == {
                "math": 1
            }
            groups = await buffer.get(2, "math", Verdict.EXPIRED)
        assert [group[0].status for group in groups] == [Verdict.EXPIRED] * 2
        assert [group[0].tokens for group in groups] == [[1], [1]]

    async def test_a_status_type_of_ones_own(self, url: str) -> None:
        async with ReplayBuffer(url, status_type=Verdict) as buffer:
            await buffer.put(make_group(1), "math")
            [found] = await buffer.find()
            assert found.status is Verdict.COMPLETED
            found.status = Verdict.JUDGED
            await buffer.update([found])
            assert await buffer.count("math", Verdict.JUDGED) == 1
            assert await buffer.get(1, "math", Verdict.JUDGED) == [make_group(1)]

    async def test_text_in_items_survives_whole(self, url: str) -> None:
        group = [make_state(1, response=HOSTILE_TEXT, extra_fields={HOSTILE_TEXT: [HOSTILE_TEXT]})]
        async with ReplayBuffer(url) as buffer:
            await buffer.put(group, "math")
            assert await buffer.get(1, "math", Status.COMPLETED) == [group]

    async def test_numbers_in_items_survive_whole(self, url: str) -> None:
        numbers = [2**63, -(2**70), float("inf"), 5e-324, -0.0, 2**53 + 1]
        async with ReplayBuffer(url) as buffer:
            await buffer.put([make_state(1, extra_fields={"numbers": numbers})], "math")
            [[state]] = await buffer.get(1, "math", Status.COMPLETED)
        assert list(map(repr, state.extra_fields["numbers"])) == list(map(repr, numbers))

    async def test_large_groups_survive_whole(self, url: str) -> None:
        group = [
            make_state(index, response_ids=list(range(20_000)), extra_fields={"blob": bytes(range(256)) * 4000})
            for index in range(6)
        ]
        async with ReplayBuffer(url) as buffer:
            await buffer.put(group, "math")
            assert await buffer.get(1, "math", Status.COMPLETED) == [group]

    async def test_what_has_no_safe_form_is_refused_with_its_path(self, url: str) -> None:
        async with ReplayBuffer(url) as buffer:
            with pytest.raises(PayloadUnsupported, match=r"extra_fields.*code"):
                await buffer.put([make_state(1, extra_fields={"code": lambda: 1})], "math")
            with pytest.raises(PayloadUnsupported, match="no safe form"):
                await buffer.put([make_state(1, extra_fields={"deep": [Plain("a")]})], "math")
            assert await buffer.size() == 0
