"""The ground level: settings, user-defined objects, errors, units, logging, references. Imports no torch."""
