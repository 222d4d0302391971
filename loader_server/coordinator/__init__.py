"""The coordinator: who is alive and how far a job is; never touches batch bytes."""
