"""The input archive by hand: filling it with what Kafka still has, and merging its objects. Not here: its format."""
