"""Things under way in an app, each a note that others find, and the law of what goes beside what: `exclusion`.

Nothing here commits a version; who carries out what a note asks for is above.
"""
