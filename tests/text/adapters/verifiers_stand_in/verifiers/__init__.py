"""A stand-in for the package verifiers, as far as hone's program calls it."""
