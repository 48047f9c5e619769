"""What the verbs about objects share, and the verbs that have a file of their own."""
