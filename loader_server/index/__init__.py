"""The index: made once from a source, all or nothing, and what planner and source work from."""
