"""Allow `python -m holdfast.cli`, for when the script isn't on the path."""

from holdfast.cli import main

main()
