"""Options of questions and operations: types, defaults and help, each declared once for all interfaces.

Methods of the Python API, verbs, HTTP routes and MCP tools take a declaration as `**options: Unpack[…]`. To add a
parameter, add a field here, and use it in the library. A declaration lacks the subject (app, moment, key), because
each interface names the subject in its own way, and limits on the size of an answer. No code belongs here.
"""
