"""``python -m dpconvex``: the command line."""

import sys

from dpconvex.cli.main import main

sys.exit(main())
