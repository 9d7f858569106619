"""Finding the commit that made something wrong: predicates, the search over the line, its session, the changed keys.

Also what a report tells beside the verdict (`evidence`) and invariants that are asked again and again (`watcher`). Only
reads, but for the tag `last-good`.
"""
