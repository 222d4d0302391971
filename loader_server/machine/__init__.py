"""One machine's processes: their parent, how they start and end, and who comes in at their ports."""
