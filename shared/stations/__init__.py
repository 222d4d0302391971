"""What limits a job, and what would help: a small queueing model of a batch's way."""
