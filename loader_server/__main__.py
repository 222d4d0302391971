"""The program `loader-server`, and `python -m loader_server`: signals are handled before anything slow is imported."""

from shared.early_signals import end_at_signals

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name, and end the process with its exit code.

    Ctrl-C ends it with code 130, and SIGTERM with 143, even while modules are imported. Errors of ours and refusals of
    the system are printed; other exceptions are raised.
    """
    end_at_signals()
    from loader_server.cli import main as run_command  # a slow import

    run_command()


if __name__ == "__main__":
    main()
