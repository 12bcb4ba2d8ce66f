"""Files that `mpifed new` writes: they run as they stand, and names are put in."""
