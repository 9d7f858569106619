"""Object stores behind one Protocol: a folder, memory or S3.

Also wrappers that count and price requests, retry them, or spool objects on this machine. Not here: what the objects
mean; to a store, the name of an object is a plain key.
"""
