"""``python -m wherry.agent``: how an agent is started."""

import sys

from wherry.agent.launch import main

if __name__ == "__main__":  # multiprocessing's children import this file
    sys.exit(main())
