"""`python -m holdfast.cli`, where the script isn't on the path."""

from holdfast.cli import main

main()
