"""A new app from a moment of another: first versions that share its SSTs, and channels of its own."""
