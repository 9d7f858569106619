"""The records that stages rejected, as their tables have them, and asking for them to be put through again."""
