"""`python -m headgate.cli`."""

import sys

from headgate.cli import main

sys.exit(main())
