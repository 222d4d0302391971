"""The commands, one module each; `cli` reads their arguments."""
