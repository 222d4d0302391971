"""The program `loader-server`, and `python -m loader_server`: SIGTERM is heeded before anything slow is imported."""

from shared.early_sigterm import end_at_sigterm

__all__ = ["main"]


def main() -> None:
    """Run the command that the arguments name; ends the process."""
    end_at_sigterm()
    from loader_server.cli import main as run_command  # it takes long

    run_command()


if __name__ == "__main__":
    main()
