"""Command one: set up, then compile models with Treadle, check them against eager, and time them (tools/main_job.py).

Any Python 3 can parse this file; see bootstrap.py.
"""

import sys

from bootstrap import run_inside

if __name__ == "__main__":
    sys.exit(run_inside("main_job.py", sys.argv[1:]))
