"""Tokens: what may be read of a store by whoever has one. They lie beside the apps, as hashes of what is sent."""
