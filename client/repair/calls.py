"""Call of a repair with the program that ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import Usage
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
            "a repair takes records to drop or to replace, or undoes the newest repair, with --replace if it replaced",
            hint=f"slackwater repair {app} --drop 'TOPIC[PARTITION]@OFFSET' --dry-run",
        )
    values = {record: data if isinstance(data, bytes) else Path(data).read_bytes() for record, data in replace.items()}
    requested: dict[RecordLocation, bytes | None] = dict.fromkeys(map(RecordLocation.parse, drop))
    if both := sorted(set(map(str, requested)) & set(values)):
        raise Usage(f"{both[0]} is both dropped and replaced", hint="name it once")
    requested |= {RecordLocation.parse(record): value for record, value in values.items()}
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
