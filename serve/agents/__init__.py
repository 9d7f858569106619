"""The store for agents: tools over the Model Context Protocol, by HTTP beside the routes or over standard streams.

The tools are those of the library, read-only: each answer is bounded, and values are hidden unless whoever asks may see
them. What may not live here: how something is read or found; who may what (`serve.tokens`), and what SQL (`serve.sql`).
"""
