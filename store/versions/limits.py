"""Types of the fields of stored objects, with their limits.

`codec` checks these limits whenever it reads or writes an object. Limits are far beyond real use. Values that a program
declares (partitions, policies, names) are checked at declaration, so that an error appears before anything is stored.
Checks between fields are in `checks`.

A new field only needs one of these types. `description` is the expected value in errors.
"""

from typing import Annotated, TypeVar

from msgspec import Meta

from ...common.durations import DAY_MS
from . import keys

MAX_OBJECT_BYTES = 64 << 20
"""Largest stored JSON object."""
MAX_OBJECT_VALUES = 1 << 21
"""Maximum number of JSON values in an object, which limits memory. An SST has about 18 values."""
MAX_PARTITIONS = 1 << 16
MAX_TASKS = 1 << 12
"""Maximum number of tasks of a batch that a table can set."""
MAX_KAFKA_PARTITIONS = 1 << 18
MAX_SHORT_TEXT = 1 << 12
MAX_MERGE_RUNS = 1 << 20
MIN_FILE_BYTES = 1 << 8
"""Minimum size that a policy can set for SSTs and levels. With less, each row would be an SST."""
MAX_FILE_BYTES = 1 << 45
"""Maximum size of an SST or a level. The sum over all SSTs of a manifest still fits into 64 bits."""
MAX_TTL_MS = 1_000_000 * DAY_MS
"""Maximum time to live, in ms. Its sum with any time in a column still fits into 64 bits."""
MIN_FANOUT, MAX_FANOUT = 1.1, 1e6
"""Limits of the fan-out: a table of 1 TiB has about 150 levels with the minimum, and two with the maximum."""
MAX_AMPLIFICATION = 1e18

MAX_SSTS = MAX_OBJECT_VALUES // 16
_MAX_COLUMNS = 1 << 16
MAX_COUNT = (1 << 53) - 1
_INT64 = (1 << 63) - 1
_YEAR_9999_MS = 253_402_300_799_999
YEAR_1_MS = -62_135_596_800_000

ONE_VERSION = "of one version alone"
_T = TypeVar("_T")
OneVersion = Annotated[_T, ONE_VERSION]
"""Type of a field that is about one version alone: the next version resets it (`commit.successor`)."""


def _integer_range(least: float, most: float, description: str) -> Meta:
    return Meta(ge=least, le=most, description=description)


Count = Annotated[int, _integer_range(0, MAX_COUNT, "a count from 0 to 2^53")]
Version = Annotated[int, _integer_range(1, MAX_COUNT, "a version's number, from 1 to 2^53")]
Epoch = Annotated[int, _integer_range(1, MAX_COUNT, "an epoch, from 1 to 2^53")]
Seq = Annotated[int, _integer_range(0, MAX_COUNT, "the number of a version, from 0 to 2^53")]
Offset = Annotated[int, _integer_range(0, _INT64, "an offset, from 0 to 2^63 - 1")]
TimeMs = Annotated[int, _integer_range(0, _YEAR_9999_MS, "milliseconds since 1970, up to the year 9999")]
EventMs = Annotated[int, _integer_range(YEAR_1_MS, _YEAR_9999_MS, "milliseconds since 1970, from the year 1 to 9999")]
AnyTimeMs = Annotated[int, _integer_range(-_INT64 - 1, _INT64, "milliseconds, from -2^63 to 2^63 - 1")]
"""Any time that a column can hold, in ms. The minimum stands for "no time yet"."""
Hash = Annotated[int, _integer_range(-_INT64 - 1, _INT64, "a hash, from -2^63 to 2^63 - 1")]

Rows = Annotated[int, _integer_range(1, MAX_FILE_BYTES, f"a number of rows from 1 to {MAX_FILE_BYTES}")]
Bytes = Annotated[int, _integer_range(0, MAX_FILE_BYTES, f"a number of bytes from 0 to {MAX_FILE_BYTES}")]
LevelNumber = Annotated[int, _integer_range(0, 1 << 31, "a level from 0 to 2^31")]
StatePartition = Annotated[
    int, _integer_range(0, MAX_PARTITIONS - 1, f"a state partition from 0 to {MAX_PARTITIONS - 1}")
]
Tasks = Annotated[int, _integer_range(0, MAX_TASKS, f"a number of tasks from 1 to {MAX_TASKS}, or 0 for none set")]
StatePartitions = Annotated[
    int, _integer_range(1, MAX_PARTITIONS, f"a number of state partitions from 1 to {MAX_PARTITIONS}")
]
KafkaPartition = Annotated[
    int, _integer_range(0, MAX_KAFKA_PARTITIONS - 1, "the number of a Kafka partition, from 0 to 2^18")
]

MergeRuns = Annotated[int, _integer_range(2, MAX_MERGE_RUNS, f"a number of runs from 2 to {MAX_MERGE_RUNS}")]
FileBytes = Annotated[
    int, _integer_range(MIN_FILE_BYTES, MAX_FILE_BYTES, f"a number of bytes from {MIN_FILE_BYTES} to {MAX_FILE_BYTES}")
]
Ratio = Annotated[float, _integer_range(0, MAX_AMPLIFICATION, f"a ratio from 0 to {MAX_AMPLIFICATION:g}")]
Fanout = Annotated[float, _integer_range(MIN_FANOUT, MAX_FANOUT, f"a factor from {MIN_FANOUT:g} to {MAX_FANOUT:g}")]
TtlMs = Annotated[int, _integer_range(0, MAX_TTL_MS, "milliseconds, from 0 to a million days")]

Name = Annotated[str, Meta(pattern=rf"\A(?:{keys.NAME})\Z", description=keys.NAME_IN_WORDS)]
Topic = Annotated[str, Meta(pattern=rf"\A(?:{keys.TOPIC})\Z", description=keys.TOPIC_IN_WORDS)]
ColumnName = Annotated[str, Meta(pattern=rf"\A(?:{keys.COLUMN})\Z", description=keys.COLUMN_IN_WORDS)]
Id = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z_-]{1,64}\Z", description="an id: 1 to 64 letters, digits, '_' and '-'")]
Ulid = Annotated[str, Meta(pattern=r"\A[0-7][0-9A-HJKMNP-TV-Z]{25}\Z", description="a ULID: 26 digits and capitals")]
Checksum = Annotated[str, Meta(max_length=64, description="a checksum of hexadecimal digits")]
"""Hexadecimal digits; `checks` verifies the digits of all checksums at once."""
Base64 = Annotated[
    str,
    Meta(
        pattern=r"\A(?:[0-9A-Za-z_-]{4})*(?:[0-9A-Za-z_-]{2,3})?\Z", max_length=44, description="a base64url checksum"
    ),
]
Key = Annotated[str, Meta(min_length=1, max_length=1024, description="the key of an object, 1 to 1,024 characters")]
NameOrNone = Annotated[str, Meta(pattern=rf"\A(?:{keys.NAME})?\Z", description=f"nothing, or {keys.NAME_IN_WORDS}")]
ColumnOrNone = Annotated[
    str, Meta(pattern=rf"\A(?:{keys.COLUMN})?\Z", description=f"nothing, or {keys.COLUMN_IN_WORDS}")
]
TypeName = Annotated[str, Meta(max_length=1 << 16, description="the name of a type, of at most 65,536 characters")]
Attempt = Annotated[str, Meta(max_length=255, description="an attempt's name, of at most 255 characters")]
Offsets = Annotated[
    tuple[Offset, ...], Meta(max_length=MAX_KAFKA_PARTITIONS, description="an offset for each partition")
]
Counts = Annotated[tuple[Count, ...], Meta(max_length=MAX_KAFKA_PARTITIONS, description="a count for each partition")]
AT_MOST_1000 = Meta(max_length=1000, description="at most 1,000 names")
COLUMNS = Meta(max_length=_MAX_COLUMNS, description=f"at most {_MAX_COLUMNS:,} columns")
SOME_COLUMNS = Meta(min_length=1, max_length=_MAX_COLUMNS, description=f"1 to {_MAX_COLUMNS:,} columns")
ShortText = Annotated[
    str, Meta(max_length=MAX_SHORT_TEXT, description=f"a text of at most {MAX_SHORT_TEXT:,} characters")
]
Text = Annotated[str, Meta(max_length=1 << 20, description="a text of at most a million characters")]
