"""`python -m tc` is the `tc` command."""

import sys

try:
    from tc.cli import main
except KeyboardInterrupt:  # Ctrl-C while it is being imported
    sys.exit(130)

sys.exit(main())
