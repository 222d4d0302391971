"""The load test: many thin trainers in few processes, how long they waited for batches, and a report on it."""
