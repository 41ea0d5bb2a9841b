"""The command line, run as ``python -m dpconvex`` is, in this process."""

import runpy
import sys
from unittest.mock import patch


def main(words):
    with patch.object(sys, "argv", ["dpconvex", *words]):
        try:
            runpy.run_module("dpconvex", run_name="__main__")
        except SystemExit as end:
            return int(end.code or 0)
