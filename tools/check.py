"""Command two: set up, then run every test, lint and contract of the repository (tools/run_tests.py).

Any Python 3 can parse this file; see bootstrap.py.
"""

import sys

from bootstrap import run_inside

if __name__ == "__main__":
    sys.exit(run_inside("run_tests.py", sys.argv[1:]))
