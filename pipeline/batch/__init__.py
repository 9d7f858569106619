"""One micro-batch of one stage, from its plan to its commit."""
