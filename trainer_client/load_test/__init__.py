"""The load test: many thin trainers in few processes, their waits for batches, and a report on it."""
