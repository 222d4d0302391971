"""The processes of one machine: their parent, their start and end, and the connections to their ports."""
