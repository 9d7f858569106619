"""Taking a stage over: where it begins, and the version that says whose it is now."""
