"""What log lines of several processes have in common: how trainers are named, and when waiting begins and ends."""
