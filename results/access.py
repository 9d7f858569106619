"""Tokens, as they are shown: made, listed, removed."""

from collections.abc import Sequence

from .. import instants
from ..keep.access.tokens import Token
from .document import Listing, TableBlock, Title
from .shown import Result, Words, fields, result

_SHOWN = ("name", "apps", "tables", "verbs", "per_s", "until_ms", "created_ms", "by", "message")


@result
def token_added(token: Token, sent: str, *, dry_run: bool) -> Words:
    """A token that was made: the one place where it is told."""
    what = f"{', '.join(token.verbs)} of {', '.join(token.apps)}, tables {', '.join(token.tables)}"
    if dry_run:
        yield f"would make token {token.name}: {what}"
        return fields(token, *_SHOWN) | {"token": "", "dry_run": True}
    yield Title(f"token {token.name}: {what}")
    if sent:
        yield "it is shown here once, and kept nowhere:"
        yield Listing(sent)
    else:
        yield f"for whoever comes with a certificate of the common name {token.name}"
    return fields(token, *_SHOWN) | {"token": sent, "dry_run": False}


def tokens(found: Sequence[Token]) -> Result:
    """The tokens of a store."""
    rows = (
        (
            each.name,
            ", ".join(each.verbs),
            ", ".join(each.apps),
            ", ".join(each.tables),
            "" if each.digest else "certificate",
            instants.when(each.created_ms),
            instants.iso(each.until_ms) if each.until_ms else "",
            each.by,
        )
        for each in found
    )
    table = TableBlock.of(("name", "may", "apps", "tables", "", "made", "until", "by"), rows)
    none = "this store has no token; `slackwater token add NAME --app APP` makes one"
    return Result([fields(each, *_SHOWN) for each in found], table if found else none)


def token_removed(token: Token, *, dry_run: bool) -> Result:
    """A token that went."""
    done = "would remove" if dry_run else "removed"
    return Result(
        fields(token, "name") | {"dry_run": dry_run}, f"{done} token {token.name}; instances hear of it in 5 s"
    )
