"""Examine a source of the table on data made for it, or any other on its own; or all that data are made for.

python -m tests.conformance SOURCE | --all [--json]
"""

import sys

from loader_server.conformance.command import main
from tests.conformance.fixtures import FIXTURES

if __name__ == "__main__":
    sys.exit(main(fixtures=FIXTURES))
