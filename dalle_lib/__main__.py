"""`python -m dalle_lib` is the command `dalle-lib`."""

from dalle_lib.cli import main

main()
