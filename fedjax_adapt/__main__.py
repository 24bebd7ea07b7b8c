"""`python -m fedjax_adapt` is `fedjax-adapt`."""

import sys

from .cli import main

sys.exit(main())
