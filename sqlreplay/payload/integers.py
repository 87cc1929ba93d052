"""Columns of integer lists: token ids, masks and model steps.

They are most of a group, and they repeat: all samples share their prompt, a mask is mostly ones, and few
model steps make one response. What repeats is stored once and rebuilt without reading every number; token
ids are packed, which reads back in half the time.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

import msgspec

__all__ = [
    "MAX_REPEATED",
    "are_integers",
    "are_numbers",
    "have_number_ends",
    "read_integer_lists",
    "write_integer_lists",
]

MAX_REPEATED: Final = 1 << 26  # numbers in one section: bounds what forged bytes can make of a few
SHORTEST: Final = 16
MOST_RUNS: Final = 8
WIDTH: Final = 4
ONE_BYTE: Final = 127  # msgpack's own form of a number up to this is no larger

Runs = dict[int, int]  # where a run ends, and its number
Written = list[list[int] | Runs | bytes | int]  # in full, as runs, packed, or the index of an equal list

_decode: Final = msgspec.msgpack.Decoder(Written).decode


def are_integers(lists: Sequence[Sequence[Any]]) -> bool:
    """Tell in one quick pass whether the lists hold nothing but integers."""
    try:
        msgspec.convert(lists, list[list[int]])
    except msgspec.ValidationError:
        return False
    return True


def are_numbers(lists: Sequence[Sequence[Any]]) -> bool:
    """Tell in two quick passes whether the lists hold nothing but integers and floats."""
    try:
        msgspec.convert(lists, list[list[float]])  # takes integers and decimals for floats too
        return type(sum(map(sum, lists))) in (int, float)  # a decimal stays one, or refuses
    except (msgspec.ValidationError, ArithmeticError, TypeError, ValueError):
        return False


def have_number_ends(lists: Sequence[list[Any]], kind: type) -> bool:
    """Tell whether every list starts and ends with a number of exactly this type, or is empty."""
    return all(type(numbers[0]) is kind is type(numbers[-1]) for numbers in lists if numbers)


def write_integer_lists(lists: Sequence[list[int]], allowance: int) -> tuple[Written, int] | None:
    """Shorten lists of integers; also return how many numbers of the allowance are left to be repeated.

    None is returned for integers of more than 32 bits, and for lists that turn out to hold other things.
    """
    first = lists[0]
    written: Written = []
    repeated = 0
    try:
        for numbers in lists:
            size = len(numbers)
            may_repeat = size >= SHORTEST and repeated + size <= allowance
            if may_repeat and written and numbers == first:
                written.append(0)
                repeated += size
            elif may_repeat and numbers[0] == numbers[1] and (runs := _find_runs(numbers)):
                written.append(runs)
                repeated += size
            elif size >= SHORTEST and (numbers[0] > ONE_BYTE or numbers[-1] > ONE_BYTE):
                written.append(struct.pack(f"<{size}i", *numbers))
            elif are_integers([numbers]):
                written.append(numbers)
            else:
                return None
    except (struct.error, TypeError, ValueError):
        return None
    return written, repeated


def read_integer_lists(data: memoryview, allowance: int) -> tuple[list[list[int]], int]:
    """Write the lists out again; also return how many numbers of the allowance were repeated."""
    lists: list[list[int]] = []
    repeated = 0
    for entry in _decode(data):
        if isinstance(entry, list):
            lists.append(entry)
        elif isinstance(entry, bytes):
            lists.append(_unpack(entry))
        else:
            repeated += len(lists[entry]) if isinstance(entry, int) else max(entry)
            if repeated > allowance:
                raise ValueError(f"found {repeated} repeated numbers, expected at most {allowance}")
            lists.append(lists[entry].copy() if isinstance(entry, int) else _expand(entry))
    return lists, repeated


def _unpack(packed: bytes) -> list[int]:
    size, rest = divmod(len(packed), WIDTH)
    if rest:
        raise ValueError(f"found {len(packed)} bytes of packed numbers, expected a multiple of {WIDTH}")
    return list(struct.unpack(f"<{size}i", packed))


def _find_runs(numbers: list[int]) -> Runs | None:
    """Describe a list of one run, or of few in ascending order; None for any other."""
    start, size = 0, len(numbers)
    if numbers.count(numbers[0]) == size:
        return {size: numbers[0]}
    runs: Runs = {}
    while start < size:
        number = numbers[start]
        end = bisect_right(numbers, number, start)
        if len(runs) == MOST_RUNS or numbers[start:end].count(number) != end - start:
            return None
        runs[end] = number
        start = end
    return runs


def _expand(runs: Runs) -> list[int]:
    numbers: list[int] = []
    start = 0
    for end, number in runs.items():
        if end <= start:
            raise ValueError(f"found a run that ends at {end} after one that ends at {start}")
        numbers += [number] * (end - start)
        start = end
    return numbers
