"""Roost: actor meshes for PyTorch, run from one Python program."""

__version__ = "0.1.0"
