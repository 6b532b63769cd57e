"""`python -m beliefmatch` is the command `beliefmatch`."""

from beliefmatch.cli import main

main()
