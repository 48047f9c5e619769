"""``wherry cp``, ``mv`` and ``sync``: objects and files from any place to any other."""
