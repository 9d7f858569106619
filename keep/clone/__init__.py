"""A new app from a moment of another: first versions that share its SSTs, or have copies, and channels of its own."""
