"""`python -m trainer_client` is `trainer-client`."""

from trainer_client.cli import main

main()
