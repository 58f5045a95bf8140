"""Run the `longfire` command as `python -m longfire`."""

import sys

from longfire.cli import main

sys.exit(main())
