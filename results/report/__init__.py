"""What bisect found as a document to hand on: its sections, its picture, and the masking of values in it."""
