"""Runs an algorithm: one client, one round, many rounds."""
