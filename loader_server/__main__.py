"""`python -m loader_server` is `loader-server`."""

from loader_server.cli import main

main()
