"""The verbs, by what they are about: each has its options, asks the library, and shows the result.

Not here: what a verb does, what its result looks like (`client.show`), and any heavy import at a module's top.
"""

_START = {"dev": "dev", **dict.fromkeys(("run", "init", "attach", "adopt"), "programs")}
_LOOK = {
    **dict.fromkeys(("status", "log"), "status"),
    "snapshot": "snapshot",
    **dict.fromkeys(("query", "get"), "rows"),
    **dict.fromkeys(("history", "diff"), "status"),
    "export": "rows",
    **dict.fromkeys(("serve", "mcp"), "serve"),
}
_FIND = {
    "bisect": "bisect",
    **dict.fromkeys(("replay", "check"), "replay"),
    "watch": "watch",
    "verify": "status",
    "rejected": "rows",
}
_STAGE = {"clone": "clone", "trial": "trial", "migrate": "programs", "promote": "keep"}
_REPAIR = {**dict.fromkeys(("rewind", "reset", "edit", "forget"), "keep"), "recover": "failover"}
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
"""The headings of `--help`, and the verbs under each, in order."""
VERBS = _START | _LOOK | _FIND | _STAGE | _REPAIR | _OPERATE
"""By verb, the module that has it under its name, which is imported when it is asked for."""
