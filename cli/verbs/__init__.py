"""The verbs, by what they are about: each has its options, asks the library, and shows the result.

Not here: what a verb does, what its result looks like (`results`), and any heavy import at a module's top.
"""

VERBS = {
    "dev": "dev",
    **dict.fromkeys(("run", "attach", "adopt", "init"), "programs"),
    **dict.fromkeys(("status", "log"), "status"),
    "snapshot": "snapshot",
    "verify": "status",
    **dict.fromkeys(("query", "sql", "export", "get"), "rows"),
    **dict.fromkeys(("diff", "history"), "status"),
    "bisect": "bisect",
    **dict.fromkeys(("replay", "check"), "replay"),
    "rejected": "rows",
    "watch": "watch",
    "trial": "trial",
    "clone": "clone",
    **dict.fromkeys(("replicate", "recover"), "failover"),
    "import": "transfer",
    **dict.fromkeys(("promote", "rewind", "reset", "edit", "forget"), "keep"),
    "migrate": "programs",
    **dict.fromkeys(("rescale", "retire", "protect", "compact", "gc", "archive"), "keep"),
    **dict.fromkeys(("serve", "mcp", "token"), "serve"),
    "app": "keep",
}
"""In the order of `--help`. Each is what has its name in this module, which is imported when it is asked for."""
