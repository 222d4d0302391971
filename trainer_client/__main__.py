"""Program `trainer-client`, and `python -m trainer_client`: SIGTERM is handled before anything slow is imported."""

from shared.early_sigterm import end_at_sigterm

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name, and end the process with its exit code.

    SIGTERM ends it with code 143, even while modules are imported. Errors that commands expect are printed and set the
    code; any other exception passes through.
    """
    end_at_sigterm()
    from trainer_client.cli import main as run_command  # slow: SIGTERM is handled by now

    run_command()


if __name__ == "__main__":
    main()
