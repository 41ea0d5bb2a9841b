"""``python -m dpconvex``: the command line."""

import sys

from dpconvex.apps.cli import main

sys.exit(main())
