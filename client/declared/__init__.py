"""Options of questions and operations: types, defaults and help, each declared once for all interfaces.

Methods of the Python API, verbs, HTTP routes and MCP tools take a declaration as `**options: Unpack[…]`. To add a
parameter, add a field here, and use it in the library. Two kinds of parameters are missing in a declaration: the
subject (app, moment, key), because each interface names it differently, and limits on the size of an answer. No code
belongs here.
"""
