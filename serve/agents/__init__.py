"""Tools for agents by the Model Context Protocol (MCP), over HTTP next to the routes, or over standard streams.

The tools are the library's operations, read-only. Answers are limited in size, and values are hidden unless the caller
may see them. Reads and searches, authorization (`serve.tokens`) and SQL (`serve.sql`) do not belong here.
"""
