"""What measurements share: events, sides, rows of the table, memory, the plot."""
