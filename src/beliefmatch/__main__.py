"""`python -m beliefmatch` is the command `beliefmatch`."""

import sys

from beliefmatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
