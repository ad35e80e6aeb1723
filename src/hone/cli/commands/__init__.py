"""Commands of `hone`, one module each: they read options, call the library, and print."""
