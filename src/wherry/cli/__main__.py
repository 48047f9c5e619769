"""``python -m wherry.cli``: the command without its entry point."""

from wherry.cli import main

main()
