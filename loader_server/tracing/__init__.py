"""One batch's life: stamps of several processes joined, and shown as lines or as a trace."""
