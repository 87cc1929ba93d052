"""The exponential race: weighted sampling without replacement as the first entries of an index.

A row's key is `time + Exp(1) / weight`. The smallest of such keys is row i with probability weight_i / sum, so the k
smallest are a weighted sample. The time then moves to the largest key taken: rows not taken keep their keys, which is
exact because the exponential has no memory, and rows that stay or come in draw a new key from there.

Keys are whole numbers of 2**-1152, written as bytes that sort as the numbers do. They have as many digits as they
need, so a time of 1e7 does not swamp a draw of 1e-9, as it would in a float, and nothing has ever to be rebased.
Rows of weight 0 run in a race of their own behind all others: they are drawn, evenly, when no others are left.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Clock", "Lot", "exact", "shares"]

EIGHT = struct.Struct(">8Q")
UNIT_BITS = 1152
BEHIND = 0x8000
LAST_BIT = 1074


class Lot:
    """Exponential draws by number: the same seed, task and number give the same draw, in any process."""

    def __init__(self, seed: str, task_name: str) -> None:
        self._hash = hashlib.blake2b(f"{seed}\0{task_name}\0".encode())
        self._block = -1
        self._draws: tuple[int, ...] = ()

    def draw(self, number: int) -> float:
        block, place = divmod(number, 8)
        if block != self._block:
            digest = self._hash.copy()
            digest.update(block.to_bytes(8, "big"))
            self._block, self._draws = block, EIGHT.unpack(digest.digest())
        return -math.log1p(-((self._draws[place] >> 12) + 0.5) * 2.0**-52)


@dataclass
class Clock:
    """The time of a race, and of the one behind it for rows of weight 0."""

    time: int = 0
    behind: int = 0

    @classmethod
    def read(cls, time: bytes | None, behind: bytes | None) -> "Clock":
        return cls(decode(time)[0] if time else 0, decode(behind)[0] if behind else 0)

    def write(self) -> tuple[bytes, bytes]:
        return encode(self.time), encode(self.behind)

    def key(self, draw: float, weight: float) -> bytes:
        """Return the key of a row that enters now."""
        if weight == 0:
            return encode(self.behind + duration(draw, 1.0), BEHIND)
        return encode(self.time + duration(draw, weight))

    def move_to(self, key: bytes) -> None:
        """Go on to the key of a row that was drawn."""
        number, is_behind = decode(key)
        if is_behind:
            self.behind = number
        else:
            self.time = number


def duration(draw: float, weight: float) -> int:
    """Return draw / weight to 53 bits, whatever their size."""
    draw_part, draw_power = math.frexp(draw)
    weight_part, weight_power = math.frexp(weight)
    shift = draw_power - weight_power - 53 + UNIT_BITS
    return int(draw_part / weight_part * 2.0**53) << shift


def encode(number: int, mark: int = 0) -> bytes:
    """Return the number of bits, then the digits from the first on: bytes that sort as the numbers do."""
    bits = number.bit_length()
    pad = -bits % 8
    return (bits | mark).to_bytes(2, "big") + (number << pad).to_bytes((bits + pad) // 8, "big").rstrip(b"\0")


def decode(key: bytes) -> tuple[int, bool]:
    head, digits = int.from_bytes(key[:2], "big"), key[2:]
    bits = head & (BEHIND - 1)
    shift = bits - 8 * len(digits)
    number = int.from_bytes(digits, "big")
    return (number << shift if shift >= 0 else number >> -shift), bool(head & BEHIND)


def exact(weight: float) -> int:
    """Return a weight as a whole number of 2**-1074. Sums of these do not drift, whatever is added and taken away."""
    numerator, denominator = weight.as_integer_ratio()
    return numerator << (LAST_BIT - denominator.bit_length() + 1)


def shares(weights: Sequence[float], total: int) -> list[float]:
    """Return each weight's share of an exact total."""
    try:
        rounded = total / 2**LAST_BIT
    except OverflowError:
        return [exact(weight) / total for weight in weights]
    return [weight / rounded for weight in weights]
