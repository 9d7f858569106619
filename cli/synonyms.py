"""Words that users know from git, docker, kubectl or SQL, and the verbs of slackwater that they may mean."""

from collections.abc import Sequence
from difflib import get_close_matches

_SYNONYMS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("list", "ls", "apps"): ("status", "snapshot list", "clone list", "token list"),
    ("ps", "top", "lag", "state"): ("status",),
    ("show", "describe", "desc", "info", "inspect"): ("status", "snapshot show", "query", "dev status"),
    ("tables", "schema", "columns", "select"): ("query",),
    ("sql", "shell", "repl", "console", "psql", "duckdb"): ("query",),
    ("version", "v"): ("--version",),
    ("help", "man", "usage"): ("--help",),
    ("rollback", "undo", "revert", "checkout", "back"): ("rewind",),
    ("restore",): ("rewind", "recover"),
    ("seek", "offsets", "reset-offsets"): ("reset",),
    ("delete", "remove", "rm", "del", "drop", "destroy", "uninstall"): (
        *("app rm", "snapshot rm", "clone rm", "token rm", "edit", "forget"),
    ),
    ("revoke",): ("token rm",),
    ("erase", "gdpr", "redact", "anonymize", "purge"): ("forget",),
    ("create", "make", "add"): ("new", "snapshot take", "clone", "token add"),
    ("scaffold", "generate", "template", "project", "quickstart"): ("new",),
    ("take", "checkpoint", "savepoint", "tag", "save", "pin", "snap", "snapshots"): ("snapshot take", "snapshot list"),
    ("branch", "fork", "clones"): ("clone", "clone list"),
    ("copy", "cp", "duplicate"): ("clone", "export", "replicate"),
    ("backup", "dump", "download", "unload", "extract"): ("export", "replicate"),
    ("load", "import", "seed", "ingest", "bootstrap", "insert"): ("init", "recover", "edit"),
    ("start", "begin"): ("run", "dev up", "bisect start"),
    ("up", "kafka", "demo", "install"): ("dev up",),
    ("down",): ("dev down",),
    ("stop", "kill", "shutdown", "quit"): ("run --help", "dev down"),  # Ctrl-C ends a run, as its help says
    ("logs", "commits", "versions", "changes", "reflog"): ("log", "dev status"),
    ("audit", "operations", "events", "who"): ("log --operations",),
    ("blame", "trace", "lineage", "provenance", "explain"): ("why", "history", "bisect"),
    ("changelog",): ("history",),
    ("affected", "downstream", "reach", "blast-radius"): ("impact",),
    ("search", "find", "debug"): ("bisect", "query"),
    ("abort", "quit", "cancel"): ("bisect reset",),
    ("lookup", "read", "key", "row", "fetch", "cat"): ("get",),
    ("compare",): ("diff", "reconcile"),
    ("warehouse", "audit-table", "match"): ("reconcile",),
    ("missing", "absent", "whynot", "where-is"): ("why-not",),
    ("as-of", "labels", "features", "pit", "training"): ("asof",),
    ("test", "try", "dry-run", "preview"): ("trial", "check"),
    ("validate", "fsck", "health"): ("verify", "check"),
    ("deploy", "release", "switch", "swap", "cutover", "merge"): ("promote", "migrate"),
    ("upgrade", "alter", "evolve", "rename"): ("migrate",),
    ("update", "set", "put", "patch", "fix", "upsert"): ("edit", "migrate"),
    ("backfill",): ("clone", "promote"),
    ("repartition", "scale", "resize"): ("rescale",),
    ("vacuum", "clean", "cleanup", "prune", "expire", "retention"): ("gc", "compact"),
    ("compaction", "optimize", "rewrite"): ("compact",),
    ("mirror", "sync", "replica", "replicas"): ("replicate",),
    ("failover", "recovery"): ("recover",),
    ("monitor", "alert", "invariants", "tail", "follow"): ("watch", "log"),
    ("errors", "dlq", "failed", "quarantine", "retry"): ("rejected",),
    ("api", "server", "http", "ui", "page", "web"): ("serve",),
    ("agent", "agents"): ("mcp",),
    ("lock", "unlock", "unprotect"): ("protect",),
    ("auth", "login", "grant", "users", "tokens"): ("token add", "token list"),
    ("iceberg",): ("export",),
}
_IN_GROUPS = {
    **dict.fromkeys(("app list", "app ls", "app show", "app describe", "app status"), ("status",)),
    **dict.fromkeys(("app create", "app new", "app add"), ("new",)),
    "snapshot new": ("snapshot take",),
    "token new": ("token add",),
    **dict.fromkeys(("snapshot restore", "snapshot rollback"), ("rewind",)),
}
SYNONYMS = {word: commands for synonyms, commands in _SYNONYMS.items() for word in synonyms}
"""Candidate commands by word, likeliest first, as typed after `slackwater`."""


def commands_for(word: str, group: str, commands_of_group: Sequence[str]) -> tuple[str, ...]:
    """Return the commands that an unknown word may mean. `group` is the group in which it was typed, or empty.

    Commands of the group come first (`delete` in `snapshot` means `snapshot rm`), followed by commands with a similar
    spelling.
    """
    word = word.lower()
    if special := _IN_GROUPS.get(f"{group} {word}"):
        return special
    near = () if word in SYNONYMS else get_close_matches(word, {*commands_of_group, *SYNONYMS}, n=3, cutoff=0.65)
    if own := tuple(f"{group} {command}".strip() for command in near if command in commands_of_group):
        return own
    commands = SYNONYMS.get(near[0] if near else word, ())
    inside = tuple(command for command in commands if group and f"{command} ".startswith(f"{group} "))
    return inside or commands
