"""`python -m tc` is the `tc` command."""

import sys

from tc.cli import main

sys.exit(main())
