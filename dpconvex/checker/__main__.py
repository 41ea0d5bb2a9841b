"""``python -m dpconvex.checker FILE``: replay the proof in a file."""

import sys

from dpconvex.checker.files import replayed, said

print(said(replayed(sys.argv[1])))
