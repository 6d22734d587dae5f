"""`python -m roost.controller.cli`: the same as `roost`."""

from __future__ import annotations

import sys

from .parser import main

sys.exit(main())
