"""Stages that have another name in a changed program: what the user says of them, and what else they may be. Pure."""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from ...errors import NotFound, Refused
from ...fold.fits import Declared, DeclaredStage
from ...store.versions.commit import is_retired
from ...store.versions.manifest import Input, Manifest

_OPTION = "--rename-stage OLD=NEW"


def to_do(heads: Mapping[str, Manifest], called: Mapping[str, str]) -> dict[str, str]:
    """The stages that are to get another name, old to new, without those that an earlier call has given it."""
    return {old: new for old, new in called.items() if old not in heads or heads[old].called != new}


def check(heads: Mapping[str, Manifest], declared: Declared, called: Mapping[str, str]) -> None:
    """See that stages can have these names, old to new.

    Raises `NotFound` where there is no such stage, or none in the program, `Refused` where the app has or had a stage
    of the new name, or one is renamed that the program has still.
    """
    app = declared.app
    for old, new in called.items():
        if old not in heads:
            raise NotFound(f"stage of app {app!r}", old, heads, hint=f"{_OPTION} names a stored stage first")
        if new not in declared.stages:
            raise NotFound(f"stage that the program declares of {app!r}", new, declared.stages, hint=f"{_OPTION}")
        if heads[old].retired:
            raise is_retired(heads[old])
        if new in heads:
            raise Refused(
                f"app {app!r} {'had' if heads[new].retired else 'has'} a stage {new!r} already, whose history that "
                f"name means: {old!r} cannot become that",
                hint="choose a name that no stage of the app ever had",
            )
        if old in declared.stages:
            raise Refused(
                f"the program has a stage {old!r}, too: that name would mean two histories of {app!r}",
                hint=f"leave {old!r} as it is, and the new stage its name; or call that one otherwise",
            )
        if list(called.values()).count(new) > 1:
            raise Refused(f"two stages of {app!r} cannot both become {new!r}")
        _check_channels(heads, old)


def _check_channels(heads: Mapping[str, Manifest], stage: str) -> None:
    """See that whoever has still to read what the stage sent has begun to: rows are not kept for others."""
    for name, output in heads[stage].outputs.items():
        if any(output.sent) and not any(readers(heads, name, stage)):
            raise Refused(
                f"rows that {stage!r} wrote to {name!r} wait for a stage that has not begun to read them",
                hint="start the program once before the stage is renamed (slackwater run FILE --until-caught-up), or "
                "retire and migrate it without that channel first",
            )


def readers(heads: Mapping[str, Manifest], channel: str, sender: str) -> Iterator[Input]:
    """Where stages that are not retired stand on a sender's channel, or stopped reading it."""
    for head in heads.values():
        for source in (head.inputs.get(channel), head.stopped.get(channel)) if not head.retired else ():
            if source is not None and source.upstream == sender:
                yield source


def renamed(heads: Mapping[str, Manifest], called: Mapping[str, str]) -> dict[str, Manifest]:
    """The versions as if the stages had these names already."""

    def sources(inputs: Mapping[str, Input]) -> dict[str, Input]:
        return {name: replace(one, upstream=called.get(one.upstream, one.upstream)) for name, one in inputs.items()}

    return {
        called.get(name, name): replace(
            head, stage=called.get(name, name), inputs=sources(head.inputs), stopped=sources(head.stopped)
        )
        for name, head in heads.items()
    }


def likely(head: Manifest, heads: Mapping[str, Manifest], declared: Declared) -> str:
    """The added stage that one may be that the program has no more: the only one like it; empty for none."""
    found = [name for name, one in declared.stages.items() if name not in heads and _is_like(head, one)]
    return found[0] if len(found) == 1 else ""


def _is_like(head: Manifest, stage: DeclaredStage) -> bool:
    if (head.table is None) != (stage.table is None) or head.inputs.keys() != stage.inputs.keys():
        return False
    if head.table is None or stage.table is None:
        return head.outputs.keys() == stage.outputs.keys()
    return head.table.key == stage.table.key
