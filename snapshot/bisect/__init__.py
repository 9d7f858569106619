"""Find the commit that broke a predicate: predicates, the search over the line, its session, the changed keys.

Also the evidence in a report (`evidence`) and invariants that are evaluated periodically (`watcher`). Read-only, except
for the tag `last-good`.
"""
