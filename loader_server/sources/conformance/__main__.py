"""`python -m loader_server.sources.conformance`."""

import sys

from loader_server.sources.conformance.command import main

if __name__ == "__main__":
    sys.exit(main())
