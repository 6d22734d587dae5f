"""Programs written for other systems, run on Roost. Nothing here is imported before it is asked for."""
