"""Options of questions and operations: types, defaults and help, each declared once for all interfaces.

Methods of the Python API, verbs, routes, tools and methods over HTTP take a declaration as `**options: Unpack[…]`,
so a new parameter is a field here and its use in the library. A declaration leaves out the subject (app, moment,
key), because each surface names the subject in its own way, and limits on the size of an answer. Not here: code.
"""
