"""The commands of `hone`, one module each: they read options, call what the rest of hone offers, and print."""
