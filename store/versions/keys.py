"""Keys of all objects under a store root. No other module knows the layout."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache

from ...errors import Usage

NAME = r"[a-z0-9][a-z0-9_-]{0,62}"
NAME_IN_WORDS = "1 to 63 of a-z, 0-9, '_' and '-', starting with a letter or a digit"
_KAFKA_TOPIC = r"[a-zA-Z0-9._-]{1,249}"
SOURCE_KIND = "(?:files|delta|iceberg):"
"""Start of the name of a source beside Kafka."""
TOPIC = rf"(?:{SOURCE_KIND})?{_KAFKA_TOPIC}"
"""Regular expression of a topic's name. A prefix that Kafka does not allow marks a source beside Kafka."""
TOPIC_IN_WORDS = "a topic's name: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"
COLUMN = r"(?!\.)[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,1024}"
"""Regular expression of column names. They cannot begin with a dot, because Arrow would read the name as a path."""
COLUMN_IN_WORDS = "a column's name: 1 to 1,024 characters without control characters, the first of them no dot"
RESERVED_COLUMNS = ("_hash", "_seq", "_op", "_prev_seq", "_expires_at", "file_index", "file_row_number")
"""Names of internal columns of SSTs and queries, in lower case, which tables cannot use."""

PART_KEYS = ("_position", "_key")
"""Names of the last key column of a table of parts: the position in a list, or the key of a map."""

_NAME, _TOPIC, _COLUMN = re.compile(NAME), re.compile(_KAFKA_TOPIC), re.compile(COLUMN)
_FILE = r"[0-9A-Za-z_-]{1,64}+\.parquet"
_IN_SSTS = ("stages", "", "sst", "")
"""Folders of an SST's key, below the app's. Empty for any name."""

NAMES = "_names"
TOKENS = "_serve/tokens/"
INSTANCES = "_serve/instances/"
NAMING = "_serve/naming/"
SOURCES = "_sources/"
REMOVING = "_removing"
"""Name of a folder that exists among an app's stages while the app is being removed. No stage has this name."""
CLONING = "_cloning"
HOT = "-hot"
"""End of the name of an SST that lies in a hot place (`store.hot`)."""


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_name(kind: str, name: str) -> str:
    """Return `name` if it is valid in object keys and topic names. Raises `Usage`, with the `kind` of name."""
    if not isinstance(name, str) or not is_name(name):
        near = re.sub(r"[^a-z0-9_-]+", "-", str(name).lower()).strip("-_")[:63]
        hint = f"for example {near!r}" if _NAME.fullmatch(near) else ""
        raise Usage(f"{kind} name {name!r} is not usable: expected {NAME_IN_WORDS}", hint=hint)
    return name


def check_topic(name: str) -> str:
    if not isinstance(name, str) or not _TOPIC.fullmatch(name):
        raise Usage(f"topic name {name!r} is not usable: expected {TOPIC_IN_WORDS}")
    return name


def is_source(topic: str) -> bool:
    """Return True for a source beside Kafka, such as a folder of files, which has the interface of a topic."""
    return ":" in topic


def source(topic: str) -> str:
    """Return the folder of a source: its declaration, and the list of its files."""
    return f"{SOURCES}{topic}/"


def source_files(topic: str) -> str:
    """Return the folder of the objects that list a source's files."""
    return f"{source(topic)}files/"


def hashed_columns(names: Sequence[str]) -> Sequence[str]:
    """Return the hashed key columns: all columns, except the last column in a table of parts.

    So the parts of a key are adjacent. `check_key` ensures that no other table ends its key with such a column name.
    """
    return names[:-1] if len(names) > 1 and names[-1] in PART_KEYS else names


def check_key(subject: str, names: Sequence[str]) -> None:
    """Raise `Usage` for a key that could be mistaken for the key of a table of parts.

    The message begins with `subject`.
    """
    if len(hashed_columns(names)) < len(names):
        raise Usage(
            f"{subject}: the last of several key columns is called {names[-1]!r}, which is reserved for parts of lists "
            "and maps; rename the column, or name another key column last"
        )


def check_columns(subject: str, names: Iterable[str], reserved: Collection[str] = RESERVED_COLUMNS) -> None:
    """Raise `Usage` for an invalid column name, or for names that differ only in case.

    The message begins with `subject`.
    """
    seen: dict[str, str] = {}
    for name in names:
        if not _COLUMN.fullmatch(name):
            raise Usage(f"{subject}: column {name[:80]!r} is not usable: expected {COLUMN_IN_WORDS}")
        if name.casefold() in reserved:
            raise Usage(f"{subject}: the column name {name!r} is reserved by slackwater; rename the column")
        if (other := seen.get(name.casefold())) is not None:
            raise Usage(
                f"{subject}: columns {other!r} and {name!r} differ only in case, which Spark and DuckDB ignore; "
                "rename one of them"
            )
        seen[name.casefold()] = name


def _in_app(path: str) -> Callable[[str], str]:
    return lambda app: f"{app}/{path}"


# `census` documents each of these.
app_info = _in_app("app.json")
channels = _in_app("channels.json")
clone_journal = _in_app(f"stages/{CLONING}/app.json")
collection = _in_app("gc.json")
forget_journal = _in_app("forgetting.json")
hold = _in_app("hold.json")
hot_places = _in_app("hot/")
recovered_root = _in_app("leaving.json")
request_signal = _in_app("notice.json")
protected = _in_app("protected.json")
recovery_journal = _in_app("recovery.json")
refresh_journal = _in_app("refreshing.json")
replica = _in_app("replica.json")
removed = _in_app("removed.json")
removal_journal = _in_app(f"stages/{REMOVING}/app.json")
boundaries = _in_app("boundaries/")
archives = _in_app("input/")
forgotten = _in_app("forgotten/")
migrations = _in_app("migrations/")
edits = _in_app("edits/")
repairs = _in_app("repairs/")
operations = _in_app("log/")
replica_cuts = _in_app("replica/")
replicas = _in_app("replicas/")
requests = _in_app("requests/")
retries = _in_app("retries/")
runners = _in_app("runners/")
snapshots = _in_app("snapshots/")
snapshot_pack = _in_app("snapshots.json")
stages = _in_app("stages/")


def promotion_outcomes(name: str) -> str:
    return f"{NAMES}/{name}/"


def json_object(folder: str, name: str | int) -> str:
    """Return the key of a small JSON object in a folder. Integer names are padded, so that keys sort numerically."""
    return f"{folder}{name:020}.json" if isinstance(name, int) else f"{folder}{name}.json"


def manifests(app: str, stage: str) -> str:
    return f"{app}/stages/{stage}/manifests/"


def manifest(app: str, stage: str, version: int) -> str:
    return json_object(manifests(app, stage), version)


def version_of(manifest_key: str) -> int:
    return int(manifest_key.rsplit("/", 1)[-1].removesuffix(".json"))


def edit_rows(app: str, ulid: str) -> str:
    return f"{edits(app)}{ulid}.arrow"


def published_positions(app: str, stage: str, sink: str) -> str:
    """Return the key prefix of a sink's published positions."""
    return f"{app}/stages/{stage}/sinks/{sink}/"


def ssts(app: str, stage: str) -> str:
    return f"{app}/stages/{stage}/sst/"


def sst(app: str, stage: str, ulid: str) -> str:
    return f"{app}/stages/{stage}/sst/{ulid}.parquet"


def hot_sst_app(key: str) -> str:
    """Return the app of an SST that lies in a hot place; empty for any other object."""
    return key.partition("/")[0] if key.endswith(f"{HOT}.parquet") and app_with_listed_ssts(key) else ""


def app_with_listed_ssts(prefix: str) -> str:
    """Return the app whose SSTs a listing of a prefix may contain; empty if it contains none, or of all apps."""
    app, *folders = prefix.split("/")
    *whole, last = folders or [""]
    fits = len(folders) <= len(_IN_SSTS) and all(map(_is_folder, whole, _IN_SSTS))
    return app if folders and fits and (_IN_SSTS[len(whole)] or last).startswith(last) else ""


def _is_folder(name: str, expected: str) -> bool:
    return expected in ("", name)


def leaves(app: str, stage: str) -> str:
    return f"{app}/stages/{stage}/leaves/"


def leaf(app: str, stage: str, ulid: str) -> str:
    return json_object(leaves(app, stage), ulid)


def pages(app: str, stage: str) -> str:
    return f"{app}/stages/{stage}/pages/"


def page(app: str, stage: str, last_ms: int, first: int, last: int) -> str:
    """Return the key of a page of versions. Keys sort by the time and the number of the last version."""
    return json_object(pages(app, stage), f"{last_ms:015}-{first:020}-{last:020}")


LEAF = re.compile(rf"{NAME}/stages/{NAME}/leaves/[0-9A-Z]{{26}}\.json")


@lru_cache(maxsize=256)
def sst_pattern(*names: str) -> re.Pattern[str]:
    """Return a regular expression of a stage's SST keys, each followed by a newline, in the folder of any app.

    `names` are the stage's present and former names, because SSTs keep their keys; none for any name. Uses possessive
    quantifiers (`+`) to avoid backtracking: no other check of a manifest takes longer.
    """
    return re.compile(rf"(?:{NAME}+/stages/(?:{'|'.join(map(re.escape, names)) or NAME})/sst/{_FILE}\n)*+")


def snapshot_objects(app: str, name: str) -> str:
    return f"{app}/snapshots/{name}/"


def captured_records(app: str, name: str, ulid: str) -> str:
    return f"{app}/snapshots/{name}/channels/{ulid}.parquet"


def archive_folder(topic: str, incarnation: int) -> str:
    """Return the folder of a topic's archive. `incarnation` is 1, and increases whenever the topic is re-created."""
    return topic if incarnation == 1 else f"{topic}@{incarnation}"


def archive(app: str, folder: str) -> str:
    return f"{archives(app)}{folder}/"


def archive_indexes(archive: str) -> str:
    return f"{archive}index/"


def archive_object(app: str, folder: str, ulid: str) -> str:
    return f"{archive(app, folder)}{ulid}.parquet"


def archived_pattern(app: str, folder: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(archive(app, folder))}{_FILE}")


def captured_pattern(app: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(app)}/snapshots/{NAME}/channels/{_FILE}")
