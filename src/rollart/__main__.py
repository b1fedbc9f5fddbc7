"""`python -m rollart` is `rollart`."""

import sys

from rollart.cli.main import main

sys.exit(main())
