"""An app copied to another store, cut by cut, and its recovery from there: offsets, fences, losses, drills."""
