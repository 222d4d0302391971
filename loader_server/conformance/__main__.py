"""`python -m loader_server.conformance`."""

import sys

from loader_server.conformance.command import main

if __name__ == "__main__":
    sys.exit(main())
