"""What the workers print, at the program that spawned them."""

from __future__ import annotations

from .console import Console
from .fold import Folder

__all__ = ["Console", "Folder"]
