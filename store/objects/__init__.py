"""Object stores with one interface: a folder, memory or S3.

Also wrappers that count and price requests, retry them, or spool objects on this machine. To a store, the name of an
object is a plain key; other packages give objects their meaning.
"""
