"""The program `loader-server`, and `python -m loader_server`: SIGTERM is handled before anything slow is imported."""

from shared.early_sigterm import end_at_sigterm

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name, and end the process with its exit code.

    Errors of ours and refusals of the system are printed; other exceptions are raised.
    """
    end_at_sigterm()
    from loader_server.cli import main as run_command  # a slow import

    run_command()


if __name__ == "__main__":
    main()
