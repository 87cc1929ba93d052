"""A group between objects and bytes: walked and encoded, its Ray references not yet fetched."""

import graphlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlreplay.errors import BadArgument
from sqlreplay.payload.frame import Part, seal_section
from sqlreplay.payload.packer import Packer
from sqlreplay.payload.refs import fetch_values
from sqlreplay.payload.refusal import REFUSALS, Refused, as_unsupported
from sqlreplay.payload.section import Directory, lay_out

__all__ = ["Draft", "PendingGroup"]


@dataclass(slots=True)
class Draft:
    """One section whose body is encoded."""

    packer: Packer
    body: bytes
    directory: Directory


class PendingGroup:
    """What `Codec.prepare` returns: `finish` fetches the references, compresses and gives the parts.

    `refs` are the distinct ObjectRefs that the group holds; their values may hold more.
    Fetching blocks, so call `finish` in a worker thread where `refs` is not empty. Arrays and tensors are read
    by `finish`, everything else was copied before; leave them as they are until it returns.

        pending = codec.prepare(group, steps=[3, 3])
        parts = await asyncio.to_thread(pending.finish) if pending.refs else pending.finish()
    """

    def __init__(self, drafts: list[Draft], *, chunk_bytes: int, max_raw_bytes: int) -> None:
        self.refs: list[Any] = list({ref: None for draft in drafts for ref in draft.packer.references})
        self._drafts = drafts
        self._chunk_bytes = chunk_bytes
        self._max_raw_bytes = max_raw_bytes

    def finish(self, values: Sequence[Any] | None = None) -> list[Part]:
        """Return the parts. `values` are those of `refs`, for a caller that has fetched them already."""
        if values is None:
            values = fetch_values(self.refs) if self.refs else ()
        if len(values) != len(self.refs):
            raise BadArgument(f"found {len(values)} values for {len(self.refs)} references; give one for each of refs")
        known = dict(zip(self.refs, values, strict=True))
        parts: list[Part] = []
        for draft in self._drafts:
            if draft.packer.references and not draft.directory.references:
                _store_references(draft, known)
            pieces = lay_out(draft.directory, draft.body, draft.packer.buffers)
            parts += seal_section(
                draft.packer.section, pieces, chunk_bytes=self._chunk_bytes, max_raw_bytes=self._max_raw_bytes
            )
        return parts


def _store_references(draft: Draft, known: dict[Any, Any]) -> None:
    """Write the values of all references beside the body, round by round, since values may hold references too."""
    packer = draft.packer
    places: dict[int, tuple[int, int]] = {}
    needs: dict[int, set[int]] = {}
    while waiting := [ref for ref, number in packer.references.items() if number not in places]:
        if unfetched := [ref for ref in waiting if ref not in known]:
            known.update(zip(unfetched, fetch_values(unfetched), strict=True))
        for ref in waiting:
            number = packer.references[ref]
            places[number] = packer.keep(_encode_value(packer, ref, known[ref]))
            needs[number] = packer.met
    order = graphlib.TopologicalSorter(needs).static_order()
    draft.directory.references = [(number, *places[number]) for number in order]


def _encode_value(packer: Packer, ref: Any, value: Any) -> bytes:
    try:
        return packer.document(lambda: packer.pack(value))
    except REFUSALS as error:
        if isinstance(error, Refused):
            error.steps.append(f"<value of {ref!r}>")
        raise as_unsupported(error) from error
