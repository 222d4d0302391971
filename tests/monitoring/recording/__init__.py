"""Real jobs, healthy ones and such with a trouble, whose metrics are recorded for the tests of rules and alerts."""
