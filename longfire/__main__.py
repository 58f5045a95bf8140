"""`python -m longfire` is the `longfire` command."""

import sys

from longfire.cli import main

sys.exit(main())
