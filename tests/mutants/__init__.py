"""Puts one-line mistakes into the code and looks whether a test notices: `python -m tests.mutants --help`.

Why a tool of our own: mutmut 3 mutates function bodies only (no bounds of a message, no tables), runs tests in forks of
one process, which our threads and sockets do not survive, and tries everything rather than a sample; Cosmic Ray edits
the working tree and runs one fixed command for each mutant, the whole suite here. What is left after that, a few edits
and a loop around pytest, is less than adapting either.
"""
