"""Questions and operations, each declared once: parameters with types, defaults and help.

Methods of the Python API, verbs, routes, tools and methods over HTTP take a declaration as `**options: Unpack[…]`, so a
new parameter is a field here and what the library makes of it. Subjects are no part of a declaration, as each surface
has its own way to name them: an app, a moment, a key; nor are bounds of an answer. What may not live here: code.
"""
