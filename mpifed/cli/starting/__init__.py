"""Templates of ``mpifed new``, in which names are substituted."""
