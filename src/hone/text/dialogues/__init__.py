"""Dialogue tasks: worlds in processes of their own, limits of turns and tokens, reasons of the end."""
