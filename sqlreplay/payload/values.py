"""The plain values that msgpack has no exact form for, each as an extension type of its own.

`FORMS` is the whole list: what is not here, not a container and not a class of the schema has no safe form.
Reading goes by code only; a name in the bytes never selects what is called.
"""

import datetime
import decimal
import functools
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec import Struct

from sqlreplay.payload.refusal import Refused

__all__ = [
    "ARRAY",
    "ENUM",
    "FORMS",
    "FROZENSET",
    "INTEGER_LISTS",
    "LARGE_INTEGER",
    "MAPPING",
    "MAX_DEPTH",
    "NUMPY_SCALAR",
    "RECORD",
    "RECORDS",
    "REFERENCE",
    "SET",
    "TENSOR",
    "TEXT",
    "TUPLE",
    "EnumWire",
    "Form",
]

MAX_DEPTH: Final = 100

TUPLE: Final = 1
SET: Final = 2
FROZENSET: Final = 3
MAPPING: Final = 4
RECORD: Final = 5
RECORDS: Final = 6
ENUM: Final = 7
ARRAY: Final = 8
NUMPY_SCALAR: Final = 9
TENSOR: Final = 10
REFERENCE: Final = 11
INTEGER_LISTS: Final = 12
LARGE_INTEGER: Final = 16
TEXT: Final = 17

Zone = str | tuple[int, str | None] | None
Clock = tuple[int, int, int, int, int, Zone]
Moment = tuple[int, int, int, int, int, int, int, int, Zone]


class EnumWire(Struct, array_like=True, forbid_unknown_fields=True):
    """A member, by its value where that is plain and by its name otherwise, of an enum in the reader's schema."""

    label: str
    value: Any
    name: str | None = None


class Form(NamedTuple):
    """How one type is written: as `wire`, a type that msgpack checks and holds exactly."""

    code: int
    kind: type
    wire: Any
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _write_integer(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _read_integer(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _write_text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _read_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _write_zone(zone: datetime.tzinfo | None) -> Zone:
    if zone is None:
        return None
    if type(zone) is datetime.timezone:
        offset = zone.utcoffset(None) // datetime.timedelta(microseconds=1)
        name = zone.tzname(None)
        return offset, None if name == datetime.timezone(zone.utcoffset(None)).tzname(None) else name
    if type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        return zone.key
    raise Refused(
        f"a time in the zone {zone!r} has no safe form as bytes; use datetime.timezone or zoneinfo.ZoneInfo, "
        "or convert with value.astimezone(datetime.timezone.utc)"
    )


def _read_zone(zone: Zone) -> datetime.tzinfo | None:
    if zone is None:
        return None
    if isinstance(zone, str):
        if zone not in _known_zones():
            raise ValueError(f"time zone {zone!r} is not known on this machine: pip install tzdata")
        return zoneinfo.ZoneInfo(zone)
    offset, name = zone
    if offset == 0 and name is None:
        return datetime.UTC
    delta = datetime.timedelta(microseconds=offset)
    return datetime.timezone(delta) if name is None else datetime.timezone(delta, name)


@functools.cache
def _known_zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _write_clock(value: datetime.time | datetime.datetime) -> Clock:
    zone = _write_zone(value.tzinfo)
    return value.hour, value.minute, value.second, value.microsecond, value.fold, zone


def _read_clock(wire: Clock) -> datetime.time:
    hour, minute, second, microsecond, fold, zone = wire
    return datetime.time(hour, minute, second, microsecond, _read_zone(zone), fold=fold)


def _write_moment(value: datetime.datetime) -> Moment:
    return value.year, value.month, value.day, *_write_clock(value)


def _read_moment(wire: Moment) -> datetime.datetime:
    return datetime.datetime.combine(datetime.date(*wire[:3]), _read_clock(wire[3:]))


def _write_date(value: datetime.date) -> tuple[int, int, int]:
    return value.year, value.month, value.day


def _write_duration(value: datetime.timedelta) -> tuple[int, int, int]:
    return value.days, value.seconds, value.microseconds


FORMS: Final[tuple[Form, ...]] = (
    Form(LARGE_INTEGER, int, bytes, _write_integer, _read_integer),
    Form(TEXT, str, bytes, _write_text, _read_text),
    Form(18, bytearray, bytes, bytes, bytearray),
    Form(19, complex, tuple[float, float], lambda value: (value.real, value.imag), lambda wire: complex(*wire)),
    Form(20, datetime.datetime, Moment, _write_moment, _read_moment),
    Form(21, datetime.date, tuple[int, int, int], _write_date, lambda wire: datetime.date(*wire)),
    Form(22, datetime.time, Clock, _write_clock, _read_clock),
    Form(23, datetime.timedelta, tuple[int, int, int], _write_duration, lambda wire: datetime.timedelta(*wire)),
    Form(24, decimal.Decimal, str, str, decimal.Decimal),
    Form(25, uuid.UUID, bytes, lambda value: value.bytes, lambda data: uuid.UUID(bytes=data)),
)
