"""The load test: many thin trainers in few processes, what they waited for, and a report of it."""
