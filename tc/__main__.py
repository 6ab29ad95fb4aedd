"""The `tc` command, and `python -m tc`."""

import sys

try:
    from tc.cli import main
except KeyboardInterrupt:  # Ctrl-C while it is being imported
    sys.exit(130)

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
