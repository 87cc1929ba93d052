"""The record that trainers already hold, and the rules by which a group of records ages and expires.

The functions work on anything shaped like `RolloutState`: the class here, another library's class of the same
protocol, or dicts with the same keys. What an item cannot carry (raw bytes have no status) is left alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import compress
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import TypedDict

__all__ = [
    "RESPONSE_FIELDS",
    "Expiry",
    "MultimodalInfo",
    "RolloutFunctionCall",
    "RolloutState",
    "RolloutToolCall",
    "SampleParams",
    "Status",
    "StorageItem",
    "expire_group",
    "get_group_status",
    "is_expired",
    "mark_expired",
    "maybe_expire_group",
    "read_field",
    "reader",
    "refresh_seq_staleness",
    "release_group",
    "reset_rollout_response",
    "staleness_at",
    "status_value",
    "step_span",
    "update_sample_version",
    "write_field",
]

Expiry = Literal["group", "sample"]
T = TypeVar("T")


class Status(str, Enum):
    """What became of a sample or a group; stored by its value.

    >>> Status("completed") is Status.COMPLETED
    True
    """

    INIT = "init"
    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    FAILED = "failed"
    FILTERED = "filtered"
    ARCHIVED = "archived"


class SampleParams(BaseModel):
    """How a response was sampled."""

    model_config = ConfigDict(extra="forbid")

    n: int = 1
    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    max_tokens: int = 2048
    stops: list[str] = Field(default_factory=list)
    stop_token_ids: list[int] = Field(default_factory=list)
    skip_special_tokens: bool = True
    sampling_seed: int | None = None
    stream: bool = False
    return_logprob: bool = True
    top_logprobs: int = 1
    return_token_ids: bool = True
    include_stop_str_in_output: bool = True
    no_stop_trim: bool = True
    spaces_between_special_tokens: bool = False
    return_routed_experts: bool = True


class RolloutFunctionCall(BaseModel):
    """The function that a tool call names, with its arguments as parsed and as written."""

    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: Any = Field(default_factory=dict)
    raw_arguments_text: str | None = None


class RolloutToolCall(BaseModel):
    """One tool call of a response."""

    model_config = ConfigDict(extra="forbid")

    id: str
    type: str = "function"
    function: RolloutFunctionCall


class MultimodalInfo(TypedDict, total=False):
    """Images of a prompt; arrays or Ray ObjectRefs to them."""

    __pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)  # type: ignore[misc]

    pixel_values: Any
    image_grid_thw: Any
    num_img_tokens: list[int] | None


class RolloutState(BaseModel):
    """One sample of a group: a prompt, its response and all that training needs to know of both.

    >>> state = RolloutState(message=[{"role": "user", "content": "2 + 2?"}], rollout_id=7)
    >>> state.uid, state.status.value, state.seq_staleness
    (7, 'init', 0)
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    group_id: int | None = None
    message: list[dict[str, Any]]
    prompt_ids: list[int] | None = None
    num_tokens: int | None = None
    proxy_attn_flops: float | None = None
    data_source: dict[str, Any] | str | None = None
    mm_info: MultimodalInfo | None = None
    reward_model: dict[str, Any] | None = None
    session_id: int | None = None

    tokens: list[int] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    sample_params: SampleParams = Field(default_factory=SampleParams)

    response: str | None = None
    tool_calls: list[RolloutToolCall] | None = None
    response_ids: list[int] | None = None
    logprobs: list[float] | None = None
    routed_experts: Any = None
    finish_reason: str | None = None
    response_mask: list[int] | None = None
    response_model_steps: list[int] | None = None
    seq_staleness: int = 0
    input_ids: list[int] | None = None
    labels: list[int] | None = None
    reward: dict[str, Any] | None = None

    rollout_id: int | None = None
    uid: int | None = None
    task_name: str | None = None
    status: Status = Status.INIT
    error_msg: str | None = None
    position_ids: Any = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _uid_follows_rollout_id(self) -> "RolloutState":
        if self.rollout_id is None:
            self.rollout_id = self.uid
        else:
            self.uid = self.rollout_id
        return self


@dataclass
class StorageItem(Generic[T]):
    """A stored group with what the store knows of it; `timestamp_id` is its place in first-in-first-out order."""

    item: list[T]
    uid: int
    timestamp_id: int
    task_name: str
    status: Any
    staleness: int


RESET_VALUES: dict[str, Any] = {
    "response": "",
    "response_ids": [],
    "logprobs": [],
    "response_model_steps": [],
    "routed_experts": None,
    "finish_reason": None,
    "response_mask": None,
    "reward": None,
    "error_msg": None,
}
RESPONSE_FIELDS = frozenset(RESET_VALUES) | {"tokens"}
IDENTITY_FIELDS = frozenset({"group_id", "rollout_id", "uid", "session_id", "task_name", "message"})
EXPIRING = frozenset({"completed", "aborted"})


def read_field(item: Any, name: str) -> Any:
    """Read a field of an object or a dict; None where the item does not have it."""
    return item.get(name) if isinstance(item, dict) else getattr(item, name, None)


def write_field(item: Any, name: str, value: Any) -> None:
    """Set a field that the item has; an item without it (raw bytes, another class) stays as it is."""
    if isinstance(item, dict):
        if name in item:
            item[name] = value
    elif hasattr(item, name):
        try:
            setattr(item, name, value)
        except (AttributeError, TypeError, ValueError):  # frozen dataclasses and models
            object.__setattr__(item, name, value)


def is_expired(item: Any) -> bool:
    return status_value(read_field(item, "status")) == "expired"


def status_value(status: Any) -> str:
    """Return the stable string of a status given as a string or as a member of any enum."""
    return str(status.value) if isinstance(status, Enum) else str(status)


def get_group_status(group: Sequence[Any]) -> Status:
    """Return the status of the group as a whole: completed if all are, else the worst of its samples.

    Items that carry no status count as completed.
    """
    found = {status_value(status) for item in group if (status := read_field(item, "status")) is not None}
    for status in (Status.FAILED, Status.ABORTED, Status.EXPIRED, Status.FILTERED):
        if status.value in found:
            return status
    return Status.COMPLETED


def update_sample_version(state: Any, model_step: int) -> Any:
    """Stamp the response tokens that have no model step yet; steps that are there stay."""
    steps = as_list(read_field(state, "response_model_steps")) or []
    response = read_field(state, "response_ids")
    missing = 0 if response is None else len(response) - len(steps)
    if missing <= 0 and steps:
        return state
    if isinstance(state, dict) and response is not None:
        state.setdefault("response_model_steps", None)
    write_field(state, "response_model_steps", [*steps, *[model_step] * missing])
    return state


def refresh_seq_staleness(group: Sequence[Any], current_train_step: int) -> Sequence[Any]:
    """Set each sample's staleness as of a train step: 0 is fully on-policy, and a sample without steps has 0."""
    for item in group:
        write_field(item, "seq_staleness", staleness_at(oldest_step_of(item), current_train_step))
    return group


def reset_rollout_response(state: Any) -> Any:
    """Clear all that a rollout made and keep all that a new one needs."""
    prompt = read_field(state, "prompt_ids")
    write_field(state, "tokens", None if prompt is None else list(prompt))
    for name, value in RESET_VALUES.items():
        write_field(state, name, [] if value == [] else value)
    return state


def release_group(group: Sequence[Any]) -> Sequence[Any]:
    """Mark a dropped group's samples as expired and let go of everything but their identity."""
    for item in group:
        for name in list(field_names(item) - IDENTITY_FIELDS - {"status", "seq_staleness", "sample_params"}):
            write_field(item, name, {} if name == "extra_fields" else None)
        mark_expired(item)
    return group


def maybe_expire_group(
    group: Sequence[Any],
    stale_threshold: int | None = None,
    *,
    token_stale_threshold: int | None = None,
    current_train_step: int | None = None,
    expiry: Expiry = "group",
) -> Sequence[Any]:
    """Expire and reset what is past a threshold, in place; `get_group_status` then tells whether anything is.

    Goes by the samples' `seq_staleness`, so refresh that first where the train step is known.

    >>> old = RolloutState(message=[], status=Status.COMPLETED, response="4", seq_staleness=3)
    >>> new = RolloutState(message=[], status=Status.COMPLETED, response="5", seq_staleness=0)
    >>> [state.response for state in maybe_expire_group([old, new], 3)]
    ['', '']
    """
    expire_group(group, stale_threshold, token_stale_threshold, current_train_step, expiry)
    return group


def expire_group(
    group: Sequence[Any],
    stale_threshold: int | None,
    token_stale_threshold: int | None,
    current_train_step: int | None,
    expiry: Expiry,
) -> str:
    """Apply the rules in place and return the status the group waits as: expired as soon as one sample newly is."""
    status = get_group_status(group).value
    if status == "expired" and expiry == "group":
        expire_samples(group)
    if status not in EXPIRING and (status != "expired" or expiry == "group" or current_train_step is None):
        return status
    if status == "expired":
        expire_samples([item for item in group if is_expired(item)])

    stale = []
    if stale_threshold and (expiry == "group" or current_train_step is not None):
        stale = [item for item in group if (read_field(item, "seq_staleness") or 0) >= stale_threshold]
    if stale and expiry == "group":
        expire_samples(group)
        return "expired"
    if token_stale_threshold and current_train_step is not None and not is_agentic(group):
        stale += [
            item
            for item in group
            if (newest := newest_trainable_step(item)) is not None
            and staleness_at(newest, current_train_step) >= token_stale_threshold
        ]
    stale = [item for item in stale if not is_expired(item)]
    expire_samples(stale)
    return "expired" if stale else status


def expire_samples(items: Sequence[Any]) -> None:
    for item in items:
        mark_expired(item)
        reset_rollout_response(item)


def mark_expired(item: Any) -> None:
    """Set the status in the item's own vocabulary, so that another library's enum stays that enum."""
    status = read_field(item, "status")
    if isinstance(status, Enum):
        write_field(item, "status", type(status)("expired"))
    elif status is not None:
        write_field(item, "status", "expired")


def is_agentic(group: Sequence[Any]) -> bool:
    """Tell whether tokens of this group never expire one by one."""
    return any(read_field(item, "input_ids") is not None or read_field(item, "labels") is not None for item in group)


def field_names(item: Any) -> set[str]:
    if isinstance(item, dict):
        return set(item)
    fields = getattr(type(item), "model_fields", None) or getattr(type(item), "__dataclass_fields__", None)
    return set(fields) if fields is not None else set(getattr(item, "__dict__", ()))


def staleness_at(step: int | None, current_train_step: int) -> int:
    """Return how far a model step lies behind: a model step names the train step whose result it is."""
    return 0 if step is None else current_train_step - step - 1


def step_range(steps: Sequence[int] | None) -> tuple[int, int] | None:
    """Return the smallest and largest step. Most responses come from one step, and `count` sees that at C speed."""
    if not steps:
        return None
    first = steps[0]
    return (first, first) if steps.count(first) == len(steps) else (min(steps), max(steps))


def as_list(value: Any) -> Any:
    """Arrays and tensors become lists, whose truth and `count` mean what they say."""
    return value.tolist() if hasattr(value, "tolist") else value


def reader(item: Any) -> Callable[[str], Any]:
    """Return a quick `read_field` for several fields of one item."""
    if isinstance(item, dict):
        return item.get
    return item.__dict__.get if isinstance(item, BaseModel) else partial(read_field, item)


def step_span(read: Callable[[str], Any]) -> tuple[int | None, int | None]:
    """Return a sample's oldest step, and the newest one of a token that counts for the loss; None where it has none."""
    steps = as_list(read("response_model_steps"))
    span = step_range(steps)
    if span is None:
        return None, None
    if not as_list(read("response_ids")):
        return span[0], None
    mask = as_list(read("response_mask"))
    if mask is None or mask.count(1) == len(mask) >= len(steps):
        return span
    return span[0], max(compress(steps, mask), default=None)


def oldest_step_of(item: Any) -> int | None:
    return step_span(reader(item))[0]


def newest_trainable_step(item: Any) -> int | None:
    return step_span(reader(item))[1]
