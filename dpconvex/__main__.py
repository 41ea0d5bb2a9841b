"""``python -m dpconvex``: the command line."""

import sys

from dpconvex.apps.cli import main

if __name__ == "__main__":
    sys.exit(main())
