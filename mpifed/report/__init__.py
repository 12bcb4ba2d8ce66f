"""Finished runs side by side: curves, tables, a page. Never the simulator."""
