"""An app copied to another store root, cut by cut, for the day on which its own is lost; `keep.recover` is that day."""
