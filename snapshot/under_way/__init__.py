"""Operations under way in an app, each recorded as a note, and the rules for what may run at the same time.

The rules are in `exclusion`. Nothing here commits a version; the operations that do are in higher layers.
"""
