"""Internal: what a run consists of beside its data, such as when it stops early."""
