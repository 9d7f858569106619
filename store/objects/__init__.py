"""Object stores with one interface: a folder, memory or S3.

Also wrappers that count and price requests, retry them, or spool objects on this machine. A store treats the name of an
object as a plain key; the meaning of keys is defined by other packages.
"""
