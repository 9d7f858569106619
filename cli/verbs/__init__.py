"""Verbs of the command line, by subject: a verb declares its options, calls the client, and prints the result.

Results are formatted in `client.show`, and a verb imports heavy modules only when it runs.
"""

_START = {
    "tour": "tour",
    "doctor": "dev",
    "dev": "dev",
    **dict.fromkeys(("new", "run", "init", "attach", "adopt"), "programs"),
}
_LOOK = {
    **dict.fromkeys(("status", "log"), "status"),
    "snapshot": "snapshot",
    **dict.fromkeys(("query", "get", "asof"), "rows"),
    **dict.fromkeys(("history", "diff"), "status"),
    "export": "rows",
    **dict.fromkeys(("serve", "mcp"), "serve"),
}
_FIND = {
    "bisect": "bisect",
    **dict.fromkeys(("why", "impact", "reconcile", "why-not"), "explain"),
    **dict.fromkeys(("replay", "check", "learn-tests"), "replay"),
    "watch": "watch",
    "verify": "status",
    "rejected": "rows",
}
_STAGE = {"clone": "clone", "trial": "trial", "migrate": "programs", "promote": "keep"}
_REPAIR = {**dict.fromkeys(("rewind", "reset", "edit", "repair", "forget"), "keep"), "recover": "failover"}
_OPERATE = {
    **dict.fromkeys(("compact", "gc", "archive", "rescale", "retire", "protect"), "keep"),
    "replicate": "failover",
    "token": "serve",
    "app": "keep",
}
SECTIONS = {
    "Start": tuple(_START),
    "Look": tuple(_LOOK),
    "Find what is wrong": tuple(_FIND),
    "Stage a change": tuple(_STAGE),
    "Repair": tuple(_REPAIR),
    "Operate": tuple(_OPERATE),
}
VERBS = _START | _LOOK | _FIND | _STAGE | _REPAIR | _OPERATE
"""Module by verb; a module is imported when its verb is first used."""
