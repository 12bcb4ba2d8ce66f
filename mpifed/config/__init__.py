"""Job files: their sections, the classes and files that they name, grids of settings."""
