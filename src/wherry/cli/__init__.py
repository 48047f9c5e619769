"""The command ``wherry``: `app.py` has the command, the other files a group of its verbs each."""


def main() -> None:
    """Run the command, as the entry point and ``python -m wherry.cli`` do."""
    from wherry.cli.app import main as run  # only the command needs typer

    run()
