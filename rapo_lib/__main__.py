"""`python -m rapo_lib` is `rapo`."""

import sys

from rapo_lib.cli import main

sys.exit(main())
