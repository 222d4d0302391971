"""Internal: what a run consists of besides its data, such as when it stops early."""
