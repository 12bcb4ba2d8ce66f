"""Ranks: communicators, devices, placement of clients, the ways of messages, averages over ranks."""
