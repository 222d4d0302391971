"""Program `trainer-client`, and `python -m trainer_client`: signals are handled before anything slow is imported."""

from shared.early_signals import end_at_signals

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name, and end the process with its exit code.

    Ctrl-C ends it with code 130, and SIGTERM with 143, even while modules are imported. Errors that commands expect are
    printed and set the code; any other exception passes through.
    """
    end_at_signals()
    from trainer_client.cli import main as run_command  # slow: signals are handled by now

    run_command()


if __name__ == "__main__":
    main()
