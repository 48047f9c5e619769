"""How the command meets the shell: its verbs, their help and examples, what it says to a slip of the fingers."""
