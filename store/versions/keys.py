"""Keys of objects under a store root. Only this module knows the layout."""

import re
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache

from ...errors import Usage

NAME = r"[a-z0-9][a-z0-9_-]{0,62}"
"""Grammar of names in keys: apps, stages, snapshots, repartition topics."""
NAME_IN_WORDS = "1 to 63 of a-z, 0-9, '_' and '-', starting with a letter or a digit"
TOPIC = r"[a-zA-Z0-9._-]{1,249}"
"""Kafka's grammar of topic names."""
TOPIC_IN_WORDS = "a topic's name: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"
COLUMN = r"(?!\.)[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,1024}"
"""Grammar of column names. Arrow reads a name with a leading dot as a path."""
COLUMN_IN_WORDS = "a column's name: 1 to 1,024 characters without control characters, the first of them no dot"
RESERVED_COLUMNS = ("_hash", "_seq", "_op", "_prev_seq", "_expires_at", "file_index", "file_row_number")
"""Names of internal columns of SSTs and queries. DuckDB ignores case in names."""

_NAME, _TOPIC, _COLUMN = re.compile(NAME), re.compile(TOPIC), re.compile(COLUMN)
_FILE = r"[0-9A-Za-z_-]{1,64}+\.parquet"

NAMES = "_names"
"""Folder of the notes about promoted names: no app can have this name."""
TOKENS = "_serve/tokens/"
"""Prefix of API tokens: no app can have the name of this folder."""
INSTANCES = "_serve/instances/"
"""Prefix of the heartbeats of instances that serve the store."""
NAMING = "_serve/naming/"
"""Prefix of the secrets, one a day, with which serving instances pseudonymise hidden values."""
REMOVING = "_removing"
"""Folder among an app's stages that marks an unfinished removal: no stage can have this name."""
CLONING = "_cloning"
"""Folder among an app's stages that marks an unfinished clone."""


def check_name(kind: str, name: str) -> str:
    """Return `name` if it is usable in an object key and a topic name. Raises `Usage`, which names the `kind`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        near = re.sub(r"[^a-z0-9_-]+", "-", str(name).lower()).strip("-_")[:63]
        hint = f"for example {near!r}" if _NAME.fullmatch(near) else ""
        raise Usage(f"{kind} name {name!r} is not usable: expected {NAME_IN_WORDS}", hint=hint)
    return name


def check_topic(name: str) -> str:
    """Return `name` if a Kafka topic may have it. Raises `Usage`."""
    if not isinstance(name, str) or not _TOPIC.fullmatch(name):
        raise Usage(f"topic name {name!r} is not usable: expected {TOPIC_IN_WORDS}")
    return name


def check_columns(subject: str, names: Iterable[str], reserved: Collection[str] = RESERVED_COLUMNS) -> None:
    """Raise `Usage`, beginning with `subject`, if a column's name is not usable, or two differ only in case."""
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
cloning = _in_app(f"stages/{CLONING}/app.json")
collection = _in_app("gc.json")
forgetting = _in_app("forgetting.json")
hold = _in_app("hold.json")
leaving = _in_app("leaving.json")
notice = _in_app("notice.json")
protected = _in_app("protected.json")
recovery = _in_app("recovery.json")
refreshing = _in_app("refreshing.json")
replica = _in_app("replica.json")
removed = _in_app("removed.json")
removing = _in_app(f"stages/{REMOVING}/app.json")
boundaries = _in_app("boundaries/")
archives = _in_app("input/")
forgotten = _in_app("forgotten/")
migrations = _in_app("migrations/")
edits = _in_app("edits/")
operations = _in_app("log/")
replica_cuts = _in_app("replica/")
replicas = _in_app("replicas/")
requests = _in_app("requests/")
retries = _in_app("retries/")
runners = _in_app("runners/")
snapshots = _in_app("snapshots/")
stages = _in_app("stages/")


def names(name: str) -> str:
    """Return the prefix of the notes about promotions of a name."""
    return f"{NAMES}/{name}/"


def note(folder: str, name: str | int) -> str:
    """Return the key of a small JSON object in its folder; numbers are padded so that keys sort like numbers."""
    return f"{folder}{name:020}.json" if isinstance(name, int) else f"{folder}{name}.json"


def manifests(app: str, stage: str) -> str:
    return f"{app}/stages/{stage}/manifests/"


def manifest(app: str, stage: str, version: int) -> str:
    return note(manifests(app, stage), version)


def version_of(manifest_key: str) -> int:
    return int(manifest_key.rsplit("/", 1)[-1].removesuffix(".json"))


def edit_rows(app: str, ulid: str) -> str:
    """Return the key of the object with the rows of an edit request."""
    return f"{edits(app)}{ulid}.arrow"


def published(app: str, stage: str, sink: str) -> str:
    """Return the prefix of a sink's published places."""
    return f"{app}/stages/{stage}/sinks/{sink}/"


def ssts(app: str, stage: str) -> str:
    return f"{app}/stages/{stage}/sst/"


def sst(app: str, stage: str, ulid: str) -> str:
    return f"{app}/stages/{stage}/sst/{ulid}.parquet"


@lru_cache(maxsize=256)
def sst_pattern(*names: str) -> re.Pattern[str]:
    """Return the pattern of a stage's SST keys, each followed by a newline; a clone's SSTs are in other apps' folders.

    `names` are the present and former names of the stage: SSTs keep the key under which they were written. Possessive
    (`+`) to avoid backtracking: this is the slowest check when a manifest is read.
    """
    return re.compile(rf"(?:{NAME}+/stages/(?:{'|'.join(map(re.escape, names))})/sst/{_FILE}\n)*+")


def snapshot_objects(app: str, name: str) -> str:
    """Return the prefix of the objects that belong to a named snapshot, besides the snapshot's own document."""
    return f"{app}/snapshots/{name}/"


def captured(app: str, name: str, ulid: str) -> str:
    """Return the key of an object with in-flight records of a named snapshot."""
    return f"{app}/snapshots/{name}/channels/{ulid}.parquet"


def archive_folder(topic: str, incarnation: int) -> str:
    """Return the folder of a topic's archive; `incarnation` counts re-creations of the topic, from 1.

    Topic names contain no '@'.
    """
    return topic if incarnation == 1 else f"{topic}@{incarnation}"


def archive(app: str, folder: str) -> str:
    """Return the prefix of the archive of a user's topic, by its folder."""
    return f"{archives(app)}{folder}/"


def archive_indexes(archive: str) -> str:
    """Return the prefix of an archive's indexes; `archive` is the archive's own prefix."""
    return f"{archive}index/"


def archived(app: str, folder: str, ulid: str) -> str:
    return f"{archive(app, folder)}{ulid}.parquet"


def archived_pattern(app: str, folder: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(archive(app, folder))}{_FILE}")


def captured_pattern(app: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(app)}/snapshots/{NAME}/channels/{_FILE}")
