"""The coordinator of a job: liveness, attachment and progress; never touches batch bytes."""
