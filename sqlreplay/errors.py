"""Every error sqlreplay raises. Each says what was found, what was expected and what to type next.

SqlReplayError
├── BadArgument (ValueError)          a call that cannot mean anything; nothing was written
│   ├── BadUrl                        not a database URL that sqlreplay can open
│   ├── InvalidGroup                  not a non-empty list of items of one type
│   └── QueryError                    an unknown field or operator, or a value of the wrong kind
├── PayloadError (ValueError)
│   ├── PayloadUnsupported            an object that has no safe form as bytes
│   └── PayloadDamaged                stored bytes that do not read back
├── RunNotEmpty                       `fresh=True` on a run that holds groups
├── TableConflict                     a table was made with other settings
├── TableFull                         a capacity is used up and `on_full="reject"` was chosen
├── TakeTimeout (TimeoutError)        the deadline passed before all that was asked was there
├── SampleTimeout (TimeoutError)      the deadline passed before the sample could be drawn
├── PutTimeout (TimeoutError)         the deadline passed before the group could go in
├── MissingExtra (ImportError)        an optional package is needed
└── StoreError
    ├── StoreUnavailable              the file or server cannot be opened or was lost
    ├── StoreBusy (TimeoutError)      another process kept the write lock too long
    ├── StoreClosed                   the buffer was closed
    ├── StoreRefused                  the database would not take what it was given
    ├── OutcomeUnknown                the reply to a COMMIT was lost
    └── SchemaError
        ├── SchemaMissing             the database has no sqlreplay tables
        ├── SchemaOutdated            the tables are older than this library
        └── SchemaTooNew              the tables are newer than this library
"""

__all__ = [
    "BadArgument",
    "BadUrl",
    "InvalidGroup",
    "MissingExtra",
    "OutcomeUnknown",
    "PayloadDamaged",
    "PayloadError",
    "PayloadUnsupported",
    "PutTimeout",
    "QueryError",
    "RunNotEmpty",
    "SampleTimeout",
    "SchemaError",
    "SchemaMissing",
    "SchemaOutdated",
    "SchemaTooNew",
    "SqlReplayError",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "TableConflict",
    "TableFull",
    "TakeTimeout",
]


class SqlReplayError(Exception):
    """The base of all errors of this library: `except SqlReplayError` catches them and nothing else."""


class BadArgument(SqlReplayError, ValueError):
    """A call that cannot mean anything, such as a negative batch size or a threshold of zero."""


class BadUrl(BadArgument):
    """A URL that names no database sqlreplay can open."""


class InvalidGroup(BadArgument):
    """Something that is not a non-empty list of items of the buffer's item type."""


class QueryError(BadArgument):
    """A query with an unknown field or operator, or a value of the wrong kind; no SQL ran."""


class PayloadError(SqlReplayError, ValueError):
    """The base of what can go wrong between objects and bytes. `uid` names the group, where it has one."""

    uid: int | None = None


class PayloadUnsupported(PayloadError):
    """An object that has no safe form as bytes; the message names the path to it."""


class PayloadDamaged(PayloadError):
    """Stored bytes that are damaged, truncated, foreign or larger than allowed."""


class RunNotEmpty(SqlReplayError):
    """`fresh=True` was asked for a run that already holds groups."""


class TableConflict(SqlReplayError):
    """A table was made with other settings than those given; nothing was changed."""


class TableFull(SqlReplayError):
    """A capacity is used up and `on_full="reject"` was chosen; nothing was stored."""


class TakeTimeout(SqlReplayError, TimeoutError):
    """The deadline passed before all that was asked was there; nothing was taken."""


class SampleTimeout(SqlReplayError, TimeoutError):
    """The deadline passed before the sample could be drawn; the message says what it waited for."""


class PutTimeout(SqlReplayError, TimeoutError):
    """The deadline passed before the group could go in; the message says what it waited for. It was not stored."""


class MissingExtra(SqlReplayError, ImportError):
    """An optional package is needed; the message has the install command."""


class StoreError(SqlReplayError):
    """The base of what can go wrong with the database."""


class StoreUnavailable(StoreError):
    """The file or server cannot be opened, or was lost before anything was committed."""


class StoreBusy(StoreError, TimeoutError):
    """Another process kept the database's write lock longer than the busy timeout."""


class StoreClosed(StoreError):
    """The buffer was closed; open a new one."""


class StoreRefused(StoreError):
    """The database would not take what it was given, such as a value beyond its limits; nothing was stored."""


class OutcomeUnknown(StoreError):
    """The connection was lost while a COMMIT was under way: it may or may not have happened."""


class SchemaError(StoreError):
    """The database's tables do not fit this library; the message has the command to type."""


class SchemaMissing(SchemaError):
    """The database has no sqlreplay tables."""


class SchemaOutdated(SchemaError):
    """The tables are older than this library."""


class SchemaTooNew(SchemaError):
    """The tables are newer than this library; upgrade the library instead."""
