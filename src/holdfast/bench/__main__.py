"""`python -m holdfast.bench`."""

import sys

from holdfast.bench.command import main

sys.exit(main())
