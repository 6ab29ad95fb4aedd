"""The command line: `tc run | inspect | compile | profile | bench | doctor | demo`.

Exit codes: 0 done; 1 wrong request or damaged input; 2 valid, but not supported; 3 results differ from the reference;
4 a bound on size, time or memory was reached; 130 interrupted.
"""

from tc.cli.main import main

__all__ = ["main"]
