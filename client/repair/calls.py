"""Call of a repair with the program that ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import NotFound, Usage
from ...snapshot.bisect.verdict import RecordLocation
from ..backends import Backends
from ..declared.operations import RepairOptions
from ..replays import open_program_file
from ..show.shown import Result

if TYPE_CHECKING:
    from ...operations.repair.records.plan import RepairPlan


def plan_repair(
    client: Backends,
    app: str,
    drop: Sequence[RecordLocation],
    code: str | Path | None,
    progress: Callable[[str], None],
) -> RepairPlan:
    """Return the changes that a repair without these records would make; see `StoredApp.repair`. Changes nothing."""
    with open_program_file(client, app, _program_path(client, app, code), progress) as program:
        from ...operations.repair.records.commit import RepairCall

        requested: dict[RecordLocation, bytes | None] = dict.fromkeys(drop)
        return RepairCall(program, requested, client.by).run(dry_run=True).plan


def _program_path(client: Backends, app: str, code: str | Path | None) -> str:
    return client.program_path(app, code, "to replay the batches with", "FILE, the program that ran")


def _read_value(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise NotFound("file with a value", str(file), found=error.strerror or "") from None


def repair_records(
    client: Backends,
    app: str,
    drop: Sequence[str],
    replace: Mapping[str, str | Path | bytes],
    code: str | Path | None,
    options: RepairOptions,
    since: Mapping[str, int],
    progress: Callable[[str], None],
) -> Result:
    """Repair an app, or undo its newest repair; see `StoredApp.repair`. `since` has versions by stage."""
    if since and options["undo"]:
        raise Usage(
            "--from is for --drop and --replace: an undo undoes the whole repair",
            hint=f"slackwater repair {app} --undo",
        )
    if (not (drop or replace) and not options["undo"]) or (drop and options["undo"]):
        raise Usage(
            "a repair needs --drop, --replace or --undo (with --replace, too, if the repair replaced records)",
            hint=f"slackwater repair {app} --drop 'TOPIC[PARTITION]@OFFSET' --dry-run",
        )
    dropped = dict.fromkeys(map(RecordLocation.parse, drop))
    replaced = {
        RecordLocation.parse(record): data if isinstance(data, bytes) else _read_value(Path(data))
        for record, data in replace.items()
    }
    if rows := [str(record) for record in (*dropped, *replaced) if record.row is not None]:
        raise Usage(
            f"{rows[0]} is a row of a repartition topic, which {app} made of records; expected a record of a topic",
            hint=f"`slackwater why {app}/TABLE KEY` shows the records that a row was made of",
        )
    if both := dropped.keys() & replaced.keys():
        raise Usage(f"{min(map(str, both))} is both dropped and replaced", hint="name it once")
    requested: dict[RecordLocation, bytes | None] = {**dropped, **replaced}
    with open_program_file(client, app, _program_path(client, app, code), progress) as program:
        from ...operations.repair.records.commit import RepairCall
        from .result import repair_result

        call = RepairCall(
            program,
            requested,
            client.by,
            undo=options["undo"],
            max_keys=options["max_keys"],
            no_sinks=options["no_sinks"],
            since=since,
            timeout_s=options["timeout_s"],
            on_wait=client.note,
            on_version=lambda manifest: progress(f"replaying {manifest.stage} v{manifest.version}"),
        )
        return repair_result(call.run(dry_run=options["dry_run"]), dry_run=options["dry_run"])
