"""The same work on Roost and on its peers, side by side in one run (see README.md)."""
