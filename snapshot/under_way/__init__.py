"""Operations and processes under way in an app, and the rules for what may run at the same time.

The rules are in `exclusion`. This package commits no version; the operations that do are in higher layers.
"""
