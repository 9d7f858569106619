"""Declarations of inputs beside Kafka: folders of files, Delta tables and Iceberg tables.

Options have Structured Streaming's names, in snake case.
"""

from pathlib import Path
from typing import Any

import msgspec

from ...common.arguments import check_arguments
from ...common.extras import require_extras
from ...common.validation import check_whole, expand_home
from ...errors import Usage
from ...store.versions.keys import check_name
from ..kafka.declared_source import Format, Source
from .table_sink import parse_address
from .topic import Topic, parse_starting_offsets


@check_arguments
def read_files(
    path: str,
    *,
    format: Format = "json",  # noqa: A002  Spark's name
    name: str = "",
    header: bool = False,
    path_glob_filter: str = "",
    max_files_per_trigger: int | None = None,
    starting_offsets: str = "earliest",
    starting_timestamp: int | str | None = None,
    include_headers: bool = False,
) -> Topic:
    """Read the files of a folder and its subfolders, once each: those that are there, and those that come.

    Rows have the columns of `topic(...)`: `value` is a line of JSON, a record of CSV, or a row of Parquet as a JSON
    object; `timestamp` is the file's time. Files are read in the order of their times and names. They must not change,
    and appear complete, by a rename. Names that begin with `_` or `.` are ignored.

    Args:
        path: Folder, or URL (`s3://`, `gs://`, `az://`).
        format: `"json"` (lines), `"csv"` (RFC 4180) or `"parquet"`. Texts are UTF-8, and may be packed (`.gz`).
        name: Name of the input, which must not change; default the last part of the path.
        header: True if the first line of each CSV file is no record.
        path_glob_filter: Pattern that names of files match, such as `"*.jsonl"`.
        max_files_per_trigger: Maximum number of files of a batch.
        starting_offsets: `"earliest"` or `"latest"`: read the files that are there, or only later ones.
        starting_timestamp: Begin with the first file of this time or later, in ms since 1970.
        include_headers: Add the column `headers`, with each record's `file`, and `line` or `row`.

    Raises `Usage` for an invalid argument.
    """
    if header and format != "csv":
        raise Usage(f"read_files(): header is for CSV; the format is {format!r}")
    address = _address("read_files(): path", path)
    is_pattern = not set("*?[").isdisjoint(address) and not Path(address).is_dir()
    if is_pattern or ("://" not in address and Path(address).is_file()):
        raise Usage(
            f"read_files(): path is {address!r}; expected a folder, not a {'pattern' if is_pattern else 'file'}",
            hint=f"name the folder, and its files as path_glob_filter={address.rpartition('/')[2]!r}",
        )
    source = _source(
        "files", address, name, max_files_per_trigger, content=format, header=header, glob=path_glob_filter
    )
    return _topic(source, starting_offsets, starting_timestamp, include_headers=include_headers)


@check_arguments
def read_delta(
    path: str,
    *,
    name: str = "",
    read_change_feed: bool = False,
    starting_version: int | None = None,
    starting_offsets: str = "earliest",
    starting_timestamp: int | str | None = None,
    ignore_deletes: bool = False,
    skip_change_commits: bool = False,
    max_files_per_trigger: int | None = None,
    include_headers: bool = False,
) -> Topic:
    """Read a Delta table: its rows, then those that its versions add; or with a change feed, its changes.

    Rows have the columns of `topic(...)`; `value` is a row as a JSON object, and `timestamp` the time of its commit.

    Args:
        path: Folder or URL of the table.
        name: Name of the input, which must not change; default the last part of the path.
        read_change_feed: Read each change, with `_change_type`, `_commit_version` and `_commit_timestamp`. Without it,
            a version that removes or changes rows ends the run.
        starting_version: Begin with the changes of this version, instead of the rows of the newest one.
        starting_offsets: `"latest"` begins after the newest version.
        starting_timestamp: Begin with the first version of this time or later, in ms since 1970.
        ignore_deletes: Pass over versions that only remove rows.
        skip_change_commits: Pass over versions that remove or change rows.
        max_files_per_trigger: Maximum number of files of a batch.
        include_headers: Add the column `headers`, with each record's `file`, `row` and `version`.

    Raises `Usage` for an invalid argument.
    """
    source = _source(
        "delta",
        _address("read_delta(): path", path),
        name,
        max_files_per_trigger,
        read_change_feed=read_change_feed,
        starting_version=None
        if starting_version is None
        else check_whole("read_delta(): starting_version", starting_version, 0),
        ignore_deletes=ignore_deletes,
        skip_change_commits=skip_change_commits,
    )
    return _topic(source, starting_offsets, starting_timestamp, include_headers=include_headers)


@check_arguments
def read_iceberg(
    table: str,
    *,
    name: str = "",
    starting_offsets: str = "earliest",
    starting_timestamp: int | str | None = None,
    ignore_deletes: bool = False,
    skip_change_commits: bool = False,
    max_files_per_trigger: int | None = None,
    include_headers: bool = False,
) -> Topic:
    """Read an Iceberg table: its rows, then those that its snapshots append. Needs the extra `iceberg`.

    Rows have the columns of `topic(...)`; `value` is a row as a JSON object, and `timestamp` the time of its snapshot.

    Args:
        table: `CATALOG.NAMESPACE.TABLE`; pyiceberg's configuration has the catalog.
        name: Name of the input, which must not change; default the last part of `table`.
        starting_offsets: `"latest"` begins after the newest snapshot.
        starting_timestamp: Begin with the first snapshot of this time or later, in ms since 1970.
        ignore_deletes: Pass over snapshots that only remove rows. Other ones that remove rows end the run.
        skip_change_commits: Pass over snapshots that remove or change rows.
        max_files_per_trigger: Maximum number of files of a batch.
        include_headers: Add the column `headers`, with each record's `file`, `row` and `version` (the snapshot).

    Raises `Usage` for an invalid argument, and `Refused` without the extra.
    """
    require_extras("iceberg", "read_iceberg()")
    source = _source(
        "iceberg",
        parse_address("read_iceberg(): table", "iceberg", table),
        name,
        max_files_per_trigger,
        ignore_deletes=ignore_deletes,
        skip_change_commits=skip_change_commits,
    )
    return _topic(source, starting_offsets, starting_timestamp, include_headers=include_headers)


def _address(owner: str, path: str) -> str:
    return parse_address(owner, "delta", str(expand_home(owner, path)) if path.startswith("~") else path)


def _source(kind: str, address: str, name: str, max_files: int | None, **options: Any) -> Source:
    base = address.rpartition("." if kind == "iceberg" else "/")[2].lower().replace("_", "-")
    owner = f"read_{kind}()"
    if (name or base).isdigit():
        raise Usage(
            f"{owner}: name {name or base!r} is not usable: expected a name with a letter",
            hint=f'name="{kind}-{name or base}"',
        )
    limit = 0 if max_files is None else check_whole(f"{owner}: max_files_per_trigger", max_files, 1)
    values = {"kind": kind, "name": check_name(owner, name or base), "address": address, "max_files": limit}
    return msgspec.convert(values | options, Source)


def _topic(source: Source, offsets: str, timestamp: int | str | None, *, include_headers: bool) -> Topic:
    start = parse_starting_offsets(source.topic, offsets, timestamp, None, "latest")
    return Topic(source.topic, start, include_headers, source)
