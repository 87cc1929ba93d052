"""Python objects to bytes and back, exactly; it knows no database.

    codec = Codec(RolloutState, response_fields={"response", "response_ids", "logprobs"})
    parts = codec.encode(group, steps=[3, 3])           # rows for the payloads table
    items, steps = codec.decode(parts)
    items, steps = codec.decode(parts, with_response=False)     # needs only the parts of section LASTING

The bytes are msgpack documents with arrays beside them. Reading them never runs, imports or looks up code: values
have a closed list of forms, and classes come from the annotations of the reader's own item type.
"""

from sqlreplay.payload.codec import LASTING, RESPONSE, Codec, Decoded
from sqlreplay.payload.frame import CHUNK_BYTES, MAX_RAW_BYTES, Part
from sqlreplay.payload.pending import PendingGroup

__all__ = [
    "CHUNK_BYTES",
    "LASTING",
    "MAX_RAW_BYTES",
    "RESPONSE",
    "Codec",
    "Decoded",
    "Part",
    "PendingGroup",
]
