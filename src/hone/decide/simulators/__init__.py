"""Worlds of services that decide: simulated users, machines and their changes."""
