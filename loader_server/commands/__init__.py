"""What the commands do, one module a command; `cli` reads their arguments."""
