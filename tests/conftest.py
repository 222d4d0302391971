"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell lets what it runs in the background ignore Ctrl-C, and so would every process that these tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
