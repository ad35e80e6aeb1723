"""Config files: TOML with line numbers, overrides, schema, resolution, and errors with locations."""
