"""The language that methods and problems are written in. Knows no ranks, no files, no job files."""
