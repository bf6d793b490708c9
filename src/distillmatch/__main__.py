"""`python -m distillmatch` is the command `distillmatch`."""

import sys

from distillmatch.cli import main

sys.exit(main())
