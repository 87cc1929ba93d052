"""A group on its way in and out: the rules of the record applied to copies, and rows turned back into items."""

import asyncio
import copy
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar, get_args

from sqlreplay.errors import InvalidGroup, PayloadDamaged, PayloadError
from sqlreplay.measures import GroupNumbers, group_numbers
from sqlreplay.payload import Codec, Decoded, Part
from sqlreplay.records import (
    RESPONSE_FIELDS,
    Expiry,
    Status,
    expire_group,
    is_expired,
    mark_expired,
    read_field,
    refresh_seq_staleness,
    release_group,
    reset_rollout_response,
    staleness_at,
    update_sample_version,
    write_field,
)
from sqlreplay.store import AGELESS

__all__ = ["Draft", "GroupForm", "PutRules"]

T = TypeVar("T")
STAMPED = ("response_model_steps", "seq_staleness", "status")


@dataclass(frozen=True)
class PutRules:
    """What the caller of `put` said about steps and thresholds."""

    model_step: int | None = None
    current_train_step: int | None = None
    stale_threshold: int | None = None
    token_stale_threshold: int | None = None
    retryable: bool = True


@dataclass
class Draft(Generic[T]):
    """A group as it will be stored. The caller's own objects change only with `apply`, once that has happened."""

    originals: Sequence[T]
    items: Sequence[T]
    status: str
    numbers: GroupNumbers
    dropped: bool

    def apply(self) -> None:
        """Show the caller's objects what was stored, or that the group was dropped."""
        if self.dropped:
            release_group(self.originals)
        elif self.items is not self.originals:
            changed = STAMPED if self.status != "expired" else (*STAMPED, *RESPONSE_FIELDS)
            for original, item in zip(self.originals, self.items, strict=True):
                for name in changed:
                    value = read_field(item, name)
                    if value is not read_field(original, name):
                        write_field(original, name, value)

    def columns(self) -> dict[str, Any]:
        """Return what the row holds of the samples."""
        numbers = self.numbers._asdict()
        del numbers["steps"]
        return {**numbers, "num_samples": len(self.items)}


class GroupForm(Generic[T]):
    """How one buffer reads and writes its groups: item type, status enum and expiry rule."""

    def __init__(self, item_type: type[T], status_type: type[Enum] | None, expiry: Expiry) -> None:
        self.item_type = item_type
        self.status_type = status_type or own_status_type(item_type) or Status
        self.expiry: Expiry = expiry
        self.codec: Codec[T] = Codec(item_type, response_fields=RESPONSE_FIELDS)

    def status(self, value: str) -> Any:
        """Return a stored status in the buffer's own vocabulary; one that it lacks stays text."""
        try:
            return self.status_type(value)
        except ValueError:
            return value

    def check(self, items: Any) -> None:
        """Refuse what is not a list of items of the buffer's type."""
        if not isinstance(items, (list, tuple)):
            raise InvalidGroup(
                f"a group is {type(items).__name__}, expected a list of {self.item_type.__name__}. "
                "Type put([item], ...)."
            )
        for index, item in enumerate(items):
            if type(item) is not self.item_type and self.item_type is not object:
                raise InvalidGroup(
                    f"item {index} of the group is {type(item).__name__}, expected {self.item_type.__name__} like all "
                    f"groups of this buffer. Open the buffer with item_type={type(item).__name__} to store those."
                )

    def draft(self, originals: Sequence[T], rules: PutRules) -> Draft[T]:
        """Stamp, refresh and expire copies of the items, and measure them."""
        items = originals
        touched = rules.model_step is not None or rules.current_train_step is not None or rules.stale_threshold
        if touched or any(is_expired(item) for item in originals):
            items = [item if isinstance(item, bytes) else copy.copy(item) for item in originals]
        if rules.model_step is not None:
            for item in items:
                if read_field(item, "response_ids") is not None:
                    update_sample_version(item, rules.model_step)
        if rules.current_train_step is not None:
            refresh_seq_staleness(items, rules.current_train_step)
        before = whole_numbers(group_numbers(items, model_step=rules.model_step))
        status = expire_group(
            items, rules.stale_threshold, rules.token_stale_threshold, rules.current_train_step, self.expiry
        )
        return Draft(
            originals,
            items,
            status,
            self.numbers_after_expiry(items, before, status),
            dropped=status == "expired" and not rules.retryable,
        )

    async def encode(self, draft: Draft[T]) -> list[Part]:
        """Turn a draft into bytes. Ray references are fetched on another thread, for that blocks."""
        pending = self.codec.prepare(draft.items, draft.numbers.steps)
        return await asyncio.to_thread(pending.finish) if pending.refs else pending.finish()

    def numbers_after_expiry(self, items: Sequence[T], before: GroupNumbers, status: str) -> GroupNumbers:
        """An expired group keeps its age by the group rule; by the sample rule it has that of its fresh members."""
        if status != "expired":
            return before
        after = group_numbers(items, model_step=None)
        if self.expiry == "sample":
            return after
        return after._replace(steps=before.steps, oldest_step=before.oldest_step, latest_step=before.latest_step)

    def stale_from_after_expiry(self, row: Any, draft: Draft[T]) -> int:
        """By the group rule an expired group keeps its place; by the sample rule it has that of its fresh members."""
        if self.expiry == "group":
            return int(row.stale_from_step)
        oldest = draft.numbers.oldest_step
        return AGELESS if oldest is None else oldest + 1

    def measured(self, items: Sequence[T], status: str, staleness: int) -> Draft[T]:
        """Measure items as they are, under a status and staleness that the caller has set."""
        numbers = whole_numbers(group_numbers(items, model_step=None))._replace(staleness=staleness)
        return Draft(items, items, status, numbers, dropped=False)

    def read(self, row: Any, parts: Sequence[Any]) -> list[T]:
        """Build a row's items, with status and staleness as the row has them."""
        expired_at = row.expired_at_step
        decoded = self.decoded(row, parts, with_response=expired_at is None)
        items = decoded.items
        as_of = expired_at if expired_at is not None else row.as_of_step
        if as_of is not None:
            for item, step in zip(items, decoded.steps, strict=True):
                write_field(item, "seq_staleness", staleness_at(step, as_of))
        elif row.stale_from_step == AGELESS and row.status != "expired":
            for item in items:
                write_field(item, "seq_staleness", 0)
        if expired_at is not None:
            for item in items:
                mark_expired(item)
                reset_rollout_response(item)
        return items

    def decoded(self, row: Any, parts: Sequence[Any], *, with_response: bool) -> Decoded[T]:
        """Read a row's bytes; what is wrong with them is said with the group's uid."""
        try:
            if not parts:
                raise PayloadDamaged("its bytes are missing")
            return self.codec.decode(map(as_part, parts), with_response=with_response)
        except PayloadError as error:
            raise self.damaged(row.uid, error) from error

    def written_as(self, row: Any, parts: Sequence[Any]) -> str:
        """Return the name of the item type that wrote these bytes."""
        try:
            return self.codec.read_item_type(map(as_part, parts))
        except PayloadError as error:
            raise self.damaged(row.uid, error) from error

    @staticmethod
    def damaged(uid: int, error: PayloadError) -> PayloadError:
        named = type(error)(f"Group {uid}: {error}")
        named.uid = uid
        return named


def whole_numbers(numbers: GroupNumbers) -> GroupNumbers:
    """Refuse steps and counts that no integer column holds; numpy's integers become plain ones."""
    whole: dict[str, Any] = {}
    for name in ("oldest_step", "latest_step", "token_fresh_step", "staleness", "num_tokens"):
        value = getattr(numbers, name)
        if type(value) is not int and value is not None:
            value = as_index(name, value)
            whole[name] = value
        if value is not None and abs(value) >= AGELESS:
            raise InvalidGroup(f"the samples give the group a {name} of {value}, expected less than 2**62.")
    if any(type(step) is not int and step is not None for step in numbers.steps):
        whole["steps"] = [None if step is None else as_index("step", step) for step in numbers.steps]
    return numbers._replace(**whole) if whole else numbers


def as_index(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidGroup(
            f"the samples give the group a {name} of {value!r}, expected a whole number. "
            "Look at response_model_steps, seq_staleness and num_tokens."
        ) from None


def own_status_type(item_type: type) -> type[Enum] | None:
    """Return the enum that the item type's own `status` is annotated with, if there is one."""
    fields = getattr(item_type, "model_fields", None)
    annotation = fields["status"].annotation if fields and "status" in fields else None
    if annotation is None:
        annotation = getattr(item_type, "__annotations__", {}).get("status")
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Enum):
            return candidate
    return None


def as_part(row: Any) -> Part:
    """A row of the payloads table has a part's columns."""
    return Part(row.part, row.body, row.raw_size, row.checksum)
