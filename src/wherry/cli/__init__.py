"""The command ``wherry``: `app.py` has the command, the other files a group of its verbs each."""


def main() -> None:
    """Run the command, as the entry point and ``python -m wherry.cli`` do."""
    import os

    if "_WHERRY_COMPLETE" in os.environ:
        from wherry.cli.shell.completion import answer_shell

        answer_shell(os.environ)
    from wherry.cli.app import main as run  # only the command needs typer

    run()
